//! Whether a result is the published one.

use super::class::Class;

/// An error if `value` is not within a relative `tolerance` of the published `reference`.
pub(super) fn agrees(
    class: Class,
    what: &str,
    value: f64,
    reference: f64,
    tolerance: f64,
) -> Result<(), String> {
    // Written so that a NaN does not agree.
    if ((value - reference) / reference).abs() <= tolerance {
        return Ok(());
    }
    Err(format!("class {class}: {what} is {value:.13e}, published {reference:.13e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_beside_the_published_one_does_not_agree() {
        let near = |value| agrees(Class::S, "it", value, 1.0, 1e-8).is_ok();
        assert!(near(1.0 + 1e-9));
        assert!(!near(1.0 + 1e-7));
        assert!(!near(f64::NAN));
    }
}
