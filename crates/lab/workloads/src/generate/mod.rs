//! Deterministic inputs for packaged programs.

mod c;
mod mail;
mod media;
mod sql;

pub use c::c_program;
pub use mail::mailbox;
pub use media::{STYLESHEET, articles, film, go_game, prose, proteins, queries, scene};
pub use sql::sql_script;

/// The Ruby program of `ruby-strings`. Arguments: megabytes of contents, iterations, seconds to
/// sleep after each.
pub const RUBY_STRINGS: &str = include_str!("strings.rb");

#[cfg(test)]
mod tests {
    use super::*;

    type Generate = fn(&mut Vec<u8>, usize, u64) -> std::io::Result<()>;

    fn make(generate: Generate, count: usize, seed: u64) -> Vec<u8> {
        let mut text = Vec::new();
        generate(&mut text, count, seed).unwrap();
        text
    }

    #[test]
    fn the_same_seed_gives_the_same_bytes() {
        let generators: [Generate; 8] =
            [c_program, mailbox, sql_script, prose, articles, queries, proteins, scene];
        for generate in generators {
            let text = make(generate, 400, 1);
            assert_eq!(text, make(generate, 400, 1));
            assert_ne!(text, make(generate, 400, 2));
            assert!(make(generate, 800, 1).len() > text.len() * 3 / 2);
        }
    }

    #[test]
    fn a_mailbox_holds_as_many_messages_as_asked() {
        let text = String::from_utf8(make(mailbox, 25, 3)).unwrap();
        assert_eq!(text.lines().filter(|line| line.starts_with("From ")).count(), 25);
    }
}
