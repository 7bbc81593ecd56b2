//! Pure folds from events to views, and statistics.
#![forbid(unsafe_code)]
