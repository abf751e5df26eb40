//! The programs that are started.

/// Which of the two trees has a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Profile {
    /// Without programs that have windows.
    Small,
    /// With all.
    Full,
}

impl Profile {
    /// Its name in file names.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Small => "small",
            Profile::Full => "full",
        }
    }

    /// The Debian packages that are installed, besides what they depend on.
    pub fn packages(self) -> Vec<&'static str> {
        let mut packages =
            vec!["g++", "openjdk-17-jdk-headless", "python3", "python3-numpy", "python3-pandas", "python3-scipy"];
        if self == Profile::Full {
            packages.extend(["gimp", "inkscape", "libreoffice-writer"]);
        }
        packages
    }
}

/// A program with what it is given to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Program {
    /// Its name in options and rows.
    pub name: &'static str,
    /// What people read.
    pub title: &'static str,
    /// The smallest tree that has it.
    pub profile: Profile,
    /// What is started in the tree; the files are those of [`super::tree`].
    pub command: &'static [&'static str],
    /// For a program with later loading phases: how long it works before each, seconds.
    pub lead: Option<f64>,
}

const LATER: &str = "/opt/launch/phases.py";

/// All programs.
pub const PROGRAMS: [Program; 9] = [
    Program {
        name: "python",
        title: "Python with NumPy, pandas and SciPy",
        profile: Profile::Small,
        command: &["/usr/bin/python3", "/opt/launch/analysis.py"],
        lead: None,
    },
    Program {
        name: "java",
        title: "a JVM program with HttpClient",
        profile: Profile::Small,
        command: &["/usr/bin/java", "-cp", "/opt/launch", "Http"],
        lead: None,
    },
    Program {
        name: "gxx",
        title: "g++ compiling a small program",
        profile: Profile::Small,
        command: &["/usr/bin/g++", "-O1", "-o", "/tmp/hello", "/opt/launch/hello.cpp"],
        lead: None,
    },
    Program {
        name: "office",
        title: "LibreOffice converting a document",
        profile: Profile::Full,
        command: &[
            "/usr/bin/soffice",
            "--headless",
            "--convert-to",
            "pdf",
            "--outdir",
            "/tmp",
            "/opt/launch/document.fodt",
        ],
        lead: None,
    },
    Program {
        name: "gimp",
        title: "GIMP without windows",
        profile: Profile::Full,
        command: &["/usr/bin/gimp", "-i", "-b", "(gimp-quit 0)"],
        lead: None,
    },
    Program {
        name: "inkscape",
        title: "Inkscape exporting a drawing",
        profile: Profile::Full,
        command: &[
            "/usr/bin/inkscape",
            "--export-type=png",
            "--export-filename=/tmp/drawing.png",
            "/opt/launch/drawing.svg",
        ],
        lead: None,
    },
    Program {
        name: "later-0.5",
        title: "two later loading phases, each 0.5 s ahead",
        profile: Profile::Small,
        command: &["/usr/bin/python3", LATER, "0.5"],
        lead: Some(0.5),
    },
    Program {
        name: "later-2",
        title: "two later loading phases, each 2 s ahead",
        profile: Profile::Small,
        command: &["/usr/bin/python3", LATER, "2"],
        lead: Some(2.0),
    },
    Program {
        name: "later-4",
        title: "two later loading phases, each 4 s ahead",
        profile: Profile::Small,
        command: &["/usr/bin/python3", LATER, "4"],
        lead: Some(4.0),
    },
];

impl Program {
    /// The program called `name`.
    pub fn named(name: &str) -> Option<&'static Program> {
        PROGRAMS.iter().find(|program| program.name == name)
    }

    /// The program whose touched pages this one has too: only the first of those that differ in
    /// their lead is learned.
    pub fn learned_as(&self) -> &'static str {
        if self.lead.is_some() { "later" } else { self.name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_names_of_their_own_and_packages() {
        for (index, program) in PROGRAMS.iter().enumerate() {
            assert!(PROGRAMS[..index].iter().all(|other| other.name != program.name));
            assert!(program.command[0].starts_with("/usr/bin/"));
            assert_eq!(program.lead.is_some(), program.name.starts_with("later-"));
        }
        assert_eq!(Program::named("later-2").map(|program| program.learned_as()), Some("later"));
        assert!(Profile::Small.packages().len() < Profile::Full.packages().len());
    }
}
