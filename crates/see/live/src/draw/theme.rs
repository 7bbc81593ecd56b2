//! How it looks: with colours or without, with block characters or in ASCII.

use ratatui::style::{Color, Modifier, Style};

/// Colours and characters of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Theme {
    /// Whether colours are used; all is told by characters, too.
    pub colour: bool,
    /// Whether characters beyond ASCII are.
    pub unicode: bool,
}

/// How long ago memory was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Age {
    /// Within two seconds.
    Now,
    /// Within ten.
    Seconds,
    /// Within a minute.
    Minute,
    /// Longer ago.
    Old,
    /// It was not seen touched.
    Never,
}

impl Age {
    /// All, the youngest first.
    pub const ALL: [Self; 5] = [Self::Now, Self::Seconds, Self::Minute, Self::Old, Self::Never];

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Now => "2 s",
            Self::Seconds => "10 s",
            Self::Minute => "1 min",
            Self::Old => "older",
            Self::Never => "not seen",
        }
    }
}

impl Theme {
    /// The theme for this environment: no colours where `NO_COLOR` is set (no-color.org), ASCII where the locale is not
    /// of UTF-8.
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default();
        let locale = locale.to_ascii_lowercase();
        Self {
            colour: set("NO_COLOR").is_none(),
            unicode: locale.contains("utf-8") || locale.contains("utf8"),
        }
    }

    fn coloured(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }

    /// Of titles.
    pub fn title(self) -> Style {
        self.coloured(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    /// Of what is less important.
    pub fn faint(self) -> Style {
        if self.colour { Style::new().fg(Color::DarkGray) } else { Style::new() }
    }

    /// Of what asks for attention.
    pub fn alert(self) -> Style {
        self.coloured(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// Of what is well.
    pub fn well(self) -> Style {
        self.coloured(Color::Green)
    }

    /// The character of an age, and its style.
    pub fn heat(self, age: Age) -> (char, Style) {
        let (block, plain, colour) = match age {
            Age::Now => ('█', '#', Color::Red),
            Age::Seconds => ('▓', '+', Color::Yellow),
            Age::Minute => ('▒', '-', Color::Green),
            Age::Old => ('░', '.', Color::Blue),
            Age::Never => ('·', '_', Color::DarkGray),
        };
        (if self.unicode { block } else { plain }, self.coloured(colour))
    }

    /// Values as a line of characters, from 0 to the highest.
    pub fn spark(self, values: &[f64]) -> String {
        let steps: &[char] = if self.unicode {
            &['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
        } else {
            &['_', '.', '-', '=', '+', '*', '%', '#']
        };
        let most = values.iter().copied().fold(0.0, f64::max);
        let step = |value: &f64| {
            let share = if most > 0.0 { value / most } else { 0.0 };
            steps[((share * steps.len() as f64).ceil() as usize).clamp(1, steps.len()) - 1]
        };
        values.iter().map(step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_says_how_it_may_look() {
        let of = |variables: &[(&str, &str)]| {
            let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
            Theme::of(|name| find(name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(of(&[("LANG", "en_GB.UTF-8")]), Theme { colour: true, unicode: true });
        assert_eq!(
            of(&[("LANG", "en_GB.UTF-8"), ("LC_ALL", "C")]),
            Theme { colour: true, unicode: false }
        );
        assert_eq!(of(&[("NO_COLOR", "1")]), Theme { colour: false, unicode: false });
        assert!(of(&[("NO_COLOR", "")]).colour);
    }

    #[test]
    fn a_line_of_values_has_a_character_each_and_the_highest_is_full() {
        let theme = Theme { colour: false, unicode: false };
        assert_eq!(theme.spark(&[0.0, 1.0, 8.0]), "__#");
        assert_eq!(theme.spark(&[0.0, 0.0]), "__");
        assert_eq!(theme.spark(&[]), "");
    }
}
