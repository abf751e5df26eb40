//! Errors of this crate.

/// What is wrong with a seccomp profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// Not the JSON of a profile.
    #[error("not a seccomp profile: {0}")]
    Json(#[from] serde_json::Error),
    /// Something that this program does not know, and would not obey.
    #[error("{field}: '{found}' is not supported")]
    Unknown {
        /// The field.
        field: &'static str,
        /// What it says.
        found: String,
    },
    /// An argument of a call that no call has.
    #[error("rule for {name}: calls have no argument number {index}, the last is 5")]
    Index {
        /// The first name of the rule.
        name: String,
        /// The argument.
        index: u32,
    },
    /// The profile is for other processors.
    #[error("the profile is not for this processor ({wanted}); it names {found}")]
    Architecture {
        /// This processor.
        wanted: &'static str,
        /// Those of the profile.
        found: String,
    },
    /// More than a filter of the kernel may hold.
    #[error("the profile takes {found} instructions, the kernel accepts {limit}")]
    TooLarge {
        /// Instructions.
        found: usize,
        /// The limit.
        limit: usize,
    },
}

/// What is wrong with a policy file.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// Not the TOML of a policy.
    #[error("not a policy: {0}")]
    Toml(String),
    /// A name that no call has.
    #[error("{name} is no system call of this architecture")]
    NoSuchCall {
        /// The name.
        name: String,
    },
    /// The linker's hash of a file is not one.
    #[error("build-id '{found}' is not in hexadecimal digits")]
    BuildId {
        /// What stands there.
        found: String,
    },
    /// A trace that tells nothing, or that cannot be understood.
    #[error("not a trace of system calls: {reason}; expected what strace writes, or a name a line")]
    Trace {
        /// Why, with the line.
        reason: String,
    },
    /// A rule that does not say which object it is for.
    #[error("a rule needs 'object' or 'build-id'")]
    NoObject,
}
