//! What a lever may bring, guessed before it is tried.

/// What a lever may bring at the most, as shares of what there is.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Of mean memory.
    pub memory: f64,
    /// Of time.
    pub time: f64,
    /// Why.
    pub why: String,
}

impl Estimate {
    /// Nothing, and why.
    pub fn nothing(why: impl Into<String>) -> Self {
        Self { memory: 0.0, time: 0.0, why: why.into() }
    }

    /// Up to these shares, and why.
    pub fn up_to(memory: f64, time: f64, why: impl Into<String>) -> Self {
        Self { memory: memory.clamp(0.0, 1.0), time: time.clamp(0.0, 1.0), why: why.into() }
    }
}
