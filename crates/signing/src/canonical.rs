//! The form in which JSON is signed: "OLPC canonical JSON", which TUF takes over. Keys are sorted,
//! there are no blanks, and strings escape `"` and `\` alone.

use serde_json::Value;

/// The bytes that are signed. Numbers must be integers: nothing else is written here.
pub(crate) fn canonical(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    write(value, &mut out);
    out
}

fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::String(text) => write_text(text, out),
        Value::Array(values) => {
            out.push(b'[');
            for (index, value) in values.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write(value, out);
            }
            out.push(b']');
        }
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by(|one, other| one.0.cmp(other.0));
            out.push(b'{');
            for (index, (key, value)) in fields.into_iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_text(key, out);
                out.push(b':');
                write(value, out);
            }
            out.push(b'}');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => out.extend_from_slice(value.to_string().as_bytes()),
    }
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text.bytes() {
        if byte == b'"' || byte == b'\\' {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
}
