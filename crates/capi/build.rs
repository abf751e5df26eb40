//! How the shared library is linked: under its name for programs, and never taken out of a process
//! again.

fn main() {
    // The number grows when a program that was linked with the library before would not work with
    // it any more.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,librunnel.so.0");
    // Its threads run for some time after a volume is disconnected; a dlclose must not take their
    // code away.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
