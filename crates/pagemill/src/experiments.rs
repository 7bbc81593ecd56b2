//! Experiments that need no machine but this one: simulated, seeded, repeatable.

pub mod colloid;
