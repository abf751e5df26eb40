//! Writes the class file of a Java program that prints one line: the compiler is not part of a Java
//! runtime.
//!
//! Class file format version 49 (Java 5): the last one without stack maps. All numbers are
//! big-endian.

const VERSION: u16 = 49;
const PUBLIC_STATIC: u16 = 0x0009;
const PUBLIC_SUPER: u16 = 0x0021;

/// Entries of the constant pool, by their tag in the format.
enum Constant<'a> {
    Text(&'a str),
    /// Class named by the text entry.
    Class(u16),
    /// String literal of the text entry.
    Literal(u16),
    /// Name and type.
    Named(u16, u16),
    /// Field of a class with a name and type.
    Field(u16, u16),
    /// Method of a class with a name and type.
    Method(u16, u16),
}

fn put16(out: &mut Vec<u8>, number: u16) {
    out.extend(number.to_be_bytes());
}

fn put_pair(out: &mut Vec<u8>, tag: u8, first: u16, second: u16) {
    out.push(tag);
    put16(out, first);
    put16(out, second);
}

fn put_constant(out: &mut Vec<u8>, constant: &Constant<'_>) {
    match constant {
        Constant::Text(text) => {
            out.push(1);
            put16(out, text.len() as u16);
            out.extend(text.as_bytes());
        }
        Constant::Class(name) => {
            out.push(7);
            put16(out, *name);
        }
        Constant::Literal(text) => {
            out.push(8);
            put16(out, *text);
        }
        Constant::Field(class, name) => put_pair(out, 9, *class, *name),
        Constant::Method(class, name) => put_pair(out, 10, *class, *name),
        Constant::Named(name, kind) => put_pair(out, 12, *name, *kind),
    }
}

/// Class `name` whose `main` prints `line`. Both must be ASCII and short.
pub fn hello(name: &str, line: &str) -> Vec<u8> {
    // Indices begin at 1, in this order.
    let constants = [
        Constant::Class(2),
        Constant::Text(name),
        Constant::Class(4),
        Constant::Text("java/lang/Object"),
        Constant::Field(6, 7),
        Constant::Class(8),
        Constant::Named(9, 10),
        Constant::Text("java/lang/System"),
        Constant::Text("out"),
        Constant::Text("Ljava/io/PrintStream;"),
        Constant::Literal(12),
        Constant::Text(line),
        Constant::Method(14, 15),
        Constant::Class(16),
        Constant::Named(17, 18),
        Constant::Text("java/io/PrintStream"),
        Constant::Text("println"),
        Constant::Text("(Ljava/lang/String;)V"),
        Constant::Text("main"),
        Constant::Text("([Ljava/lang/String;)V"),
        Constant::Text("Code"),
    ];
    // getstatic 5, ldc 11, invokevirtual 13, return
    let code = [0xb2, 0, 5, 0x12, 11, 0xb6, 0, 13, 0xb1];
    let mut out = vec![0xca, 0xfe, 0xba, 0xbe];
    put16(&mut out, 0);
    put16(&mut out, VERSION);
    put16(&mut out, constants.len() as u16 + 1);
    constants.iter().for_each(|constant| put_constant(&mut out, constant));
    // access, this class, parent class; no interfaces, no fields, one method
    [PUBLIC_SUPER, 1, 3, 0, 0, 1].into_iter().for_each(|number| put16(&mut out, number));
    // access, name, type, one attribute named Code
    [PUBLIC_STATIC, 19, 20, 1, 21].into_iter().for_each(|number| put16(&mut out, number));
    // length of what follows: stack 2, locals 1, code, no exceptions, no attributes
    out.extend((12 + code.len() as u32).to_be_bytes());
    put16(&mut out, 2);
    put16(&mut out, 1);
    out.extend((code.len() as u32).to_be_bytes());
    out.extend(code);
    // no exceptions, no attributes of the code, none of the class
    [0, 0, 0].into_iter().for_each(|number| put16(&mut out, number));
    out
}
