//! Errors of the service, sorted into those of a store, and told without secrets.

use std::error::Error as _;
use std::io;

use object_store::Error;
use object_store::client::HttpError;
use store::StoreError;

/// Longest text that is taken over from an error of the service.
const TEXT_BYTES_MAX: usize = 300;

/// Why a request failed.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// There is no such object.
    NotFound,
    /// The object is not the one that was meant.
    Changed,
    /// It is the one that is known already.
    NotModified,
    /// The service does not answer, or says that it cannot now.
    Away(String),
    /// The credentials are missing, wrong, or allow too little.
    Refused(String),
    /// Anything else.
    Other(String),
}

impl Failure {
    pub fn of(error: &Error) -> Failure {
        match error {
            Error::NotFound { .. } => Failure::NotFound,
            Error::Precondition { .. } | Error::AlreadyExists { .. } => Failure::Changed,
            Error::NotModified { .. } => Failure::NotModified,
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => Failure::Refused(summary(error)),
            // Listings tell these no better.
            other if has_status(other, &["401", "403"]) => Failure::Refused(summary(other)),
            other if has_status(other, &["404"]) => Failure::NotFound,
            other if is_away(other) => Failure::Away(summary(other)),
            other => Failure::Other(summary(other)),
        }
    }

    /// As an error of a store that is at `place`.
    pub fn into_error(self, place: &str, what: &'static str, key: &str) -> StoreError {
        let key = key.to_owned();
        match self {
            Failure::NotFound => StoreError::NotFound { key },
            Failure::Changed | Failure::NotModified => StoreError::Changed { key },
            Failure::Away(reason) => StoreError::Away { store: place.to_owned(), reason },
            Failure::Refused(reason) => StoreError::Refused { key, reason },
            Failure::Other(reason) => StoreError::Io { what, key, source: io::Error::other(reason) },
        }
    }
}

/// Whether the service answered with one of these.
fn has_status(error: &Error, codes: &[&str]) -> bool {
    let text = error.to_string();
    codes.iter().any(|code| text.contains(&format!("status code: {code}")))
}

/// Whether it may work later: no connection, no answer in time, or an answer that says so.
fn is_away(error: &Error) -> bool {
    let mut source = error.source();
    while let Some(cause) = source {
        if cause.downcast_ref::<HttpError>().is_some() {
            return true;
        }
        source = cause.source();
    }
    let text = error.to_string();
    ["status code: 5", "status code: 429", "InternalError", "SlowDown"].iter().any(|sign| text.contains(sign))
}

/// An error in one line. Answers of S3 quote what was signed, and URLs of Azure hold signatures:
/// neither is told.
pub(crate) fn summary(error: &Error) -> String {
    let text = error.to_string();
    if let Some(code) = element(&text, "Code") {
        return match element(&text, "Message") {
            Some(message) => shortened(&format!("{code}: {message}")),
            None => shortened(code),
        };
    }
    let mut deepest: &dyn std::error::Error = error;
    while let Some(cause) = deepest.source() {
        deepest = cause;
    }
    let cause = deepest.to_string();
    let text = if text.contains(&cause) { text } else { format!("{text}: {cause}") };
    let words = text.split_whitespace().map(|word| match word.split_once('?') {
        Some((before, _)) if before.contains("://") => before,
        _ => word,
    });
    shortened(&words.collect::<Vec<_>>().join(" "))
}

fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once('<').map(|(value, _)| value.trim()).filter(|value| !value.is_empty())
}

fn shortened(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(TEXT_BYTES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> Error {
        Error::Generic { store: "S3", source: text.to_owned().into() }
    }

    #[test]
    fn errors_are_told_without_what_was_signed() {
        let body = "Server returned non-2xx status code: 403 Forbidden: <Error><Code>SignatureDoesNotMatch</Code>\
                    <Message>It differs</Message><StringToSign>hunter2</StringToSign></Error>";
        assert_eq!(summary(&generic(body)), "SignatureDoesNotMatch: It differs");
        let url = summary(&generic("cannot get https://box.example.org/a?sig=hunter2&x=1 now"));
        assert!(url.contains("https://box.example.org/a now") && !url.contains("hunter2"), "{url}");
        assert!(summary(&generic(&"x".repeat(5000))).len() <= TEXT_BYTES_MAX);
    }

    #[test]
    fn answers_that_ask_to_wait_are_told_from_those_that_will_stay() {
        let away = |text: &str| matches!(Failure::of(&generic(text)), Failure::Away(_));
        assert!(away("Server returned non-2xx status code: 503 Service Unavailable: "));
        assert!(away("Server returned error response: <Code>SlowDown</Code>"));
        assert!(!away("Server returned non-2xx status code: 400 Bad Request: "));
        let refused = Failure::of(&generic("Server returned non-2xx status code: 403 Forbidden: "));
        assert!(matches!(refused, Failure::Refused(_)));
        assert!(matches!(Failure::of(&generic("non-2xx status code: 404 Not Found: ")), Failure::NotFound));
    }
}
