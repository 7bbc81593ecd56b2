//! The words of pagemill: units, events, views, decisions, recordings and the traits between them.
#![forbid(unsafe_code)]
