//! What a lever may bring, guessed before it is tried.

/// What a lever may bring at the most, as shares of what there is.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Of mean memory.
    pub memory: f64,
    /// Of time.
    pub time: f64,
    /// Of mean memory what it may well bring by what was seen: who promises more of that is tried first.
    pub likely: f64,
    /// Why.
    pub why: String,
}

impl Estimate {
    /// Nothing, and why.
    pub fn nothing(why: impl Into<String>) -> Self {
        Self::up_to(0.0, 0.0, why)
    }

    /// Up to these shares, and why.
    pub fn up_to(memory: f64, time: f64, why: impl Into<String>) -> Self {
        let memory = memory.clamp(0.0, 1.0);
        Self { memory, time: time.clamp(0.0, 1.0), likely: memory, why: why.into() }
    }

    /// The same, of which this share may well come.
    #[must_use]
    pub fn likely(self, share: f64) -> Self {
        Self { likely: share.clamp(0.0, self.memory), ..self }
    }
}
