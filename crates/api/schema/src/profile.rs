//! The two sets of fields and rules that an object can be judged by.

use std::fmt;

/// Whose rules apply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Profile {
    /// The default: upstream's rules plus the fields and values of the proposals that upstream lacks.
    #[default]
    Pulselet,
    /// The answers of a v1.36 API server.
    Kubernetes,
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pulselet => "pulselet",
            Self::Kubernetes => "kubernetes",
        })
    }
}
