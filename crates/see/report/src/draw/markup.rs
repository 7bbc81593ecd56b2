//! Markup that is HTML and XML at once: every element is closed, every attribute quoted, every text escaped.
//!
//! HTML alone takes attributes without quotes, until one ends in a slash: `height=32/>` is a height of "32/".

use std::fmt::{self, Display, Write as _};

use pagemill_launch::stdio::{printable, steers};

/// Names and values.
pub type Attributes<'a> = &'a [(&'a str, &'a dyn Display)];

/// Elements written so far.
#[derive(Clone, Debug, Default)]
pub struct Markup(String);

impl Markup {
    fn begin(&mut self, name: &str, attributes: Attributes<'_>) {
        self.0.push('<');
        self.0.push_str(name);
        for (name, value) in attributes {
            // Writing to a string cannot fail.
            let _ = write!(self.0, " {name}=\"{}\"", escape(&value.to_string()));
        }
    }

    /// An element that others follow in, until [`Self::close`].
    pub fn open(&mut self, name: &str, attributes: Attributes<'_>) -> &mut Self {
        self.begin(name, attributes);
        self.0.push('>');
        self
    }

    /// The end of an element.
    pub fn close(&mut self, name: &str) -> &mut Self {
        let _ = write!(self.0, "</{name}>");
        self
    }

    /// An element with nothing in it.
    pub fn empty(&mut self, name: &str, attributes: Attributes<'_>) -> &mut Self {
        self.begin(name, attributes);
        self.0.push_str("/>");
        self
    }

    /// An element with a text in it.
    pub fn text(&mut self, name: &str, attributes: Attributes<'_>, text: &str) -> &mut Self {
        self.open(name, attributes).escaped(text).close(name)
    }

    /// A text within an element that has others, too.
    pub fn escaped(&mut self, text: &str) -> &mut Self {
        self.0.push_str(&escape(text));
        self
    }

    /// What stands between elements: a line break, or what another writer of markup made.
    pub(super) fn raw(&mut self, markup: &str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// All of it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Display for Markup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `text` as it may stand in HTML and SVG, both between tags and inside a quoted attribute.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Neither HTML nor XML can carry other control characters, even escaped.
            other if steers(other) => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A page with each of its texts changed: what stands between two tags, not what is in `style` and `script`.
pub fn with_texts(page: &str, change: &mut dyn FnMut(&str) -> String) -> String {
    const ESCAPED: [(&str, &str); 5] =
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")];
    let (mut changed, mut is_text) = (String::with_capacity(page.len()), true);
    for piece in page.split_inclusive('>') {
        let (text, tag) = piece.split_at(piece.find('<').unwrap_or(piece.len()));
        match is_text {
            true => {
                let plain = ESCAPED
                    .iter()
                    .fold(text.to_owned(), |text, (is, means)| text.replace(is, means));
                changed.push_str(&escape(&change(&plain)));
            }
            false => changed.push_str(text),
        }
        changed.push_str(tag);
        let opens = ["<style", "<script"].iter().any(|name| tag.starts_with(name));
        is_text = !opens && (is_text || tag.starts_with("</"));
    }
    changed
}

/// What every script of a page may call.
const UNITS: &str = include_str!("units.js");

/// Data and the script that draws it. The data is JSON in which nothing can end its element; nothing is fetched.
pub(super) fn script(id: &str, data: &serde_json::Value, script: &str) -> String {
    let data = printable(&data.to_string()).replace('<', "\\u003c").replace('&', "\\u0026");
    format!(
        "<script id=\"{id}\" type=\"application/json\">{data}</script>\n\
         <script>\n//<![CDATA[\n{{\n{UNITS}{script}}}\n//]]>\n</script>\n"
    )
}

/// Whether a script may stand in a page that is passed on.
#[cfg(test)]
pub(super) fn assert_harmless(script: &str) {
    for word in ["http", "fetch(", "XMLHttp", "innerHTML", "import(", "eval(", "document.write"] {
        assert!(!script.contains(word) && !UNITS.contains(word), "{word}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who changed the paths of a page as those of a text took `/><text` for one, and the ends of tags with it.
    #[test]
    fn the_texts_of_a_page_are_changed_and_its_tags_are_not() {
        let mut page = Markup::default();
        page.raw("<style>a > b { font: 9px/2 x } /* y */</style>")
            .empty("rect", &[("height", &32)]);
        page.text("p", &[("class", &"/x")], "in /x's \"<&\"").text("p", &[], "/x").empty("br", &[]);
        let same = with_texts(page.as_str(), &mut str::to_owned);
        assert_eq!(same, page.as_str());
        let changed = with_texts(page.as_str(), &mut |text| text.replace("/x", "<y>"));
        let expected =
            page.as_str().replace("/x&#39;", "&lt;y&gt;&#39;").replace(">/x<", ">&lt;y&gt;<");
        assert_eq!(changed, expected);
        assert!(
            changed.contains("class=\"/x\"") && changed.contains(">&lt;y&gt;</p>"),
            "{changed}"
        );
    }

    #[test]
    fn values_and_texts_cannot_leave_their_places() {
        let mut markup = Markup::default();
        markup.open("g", &[("a", &"\"/><x"), ("b", &32)]).text("text", &[], "<&").close("g");
        let parsed = roxmltree::Document::parse(markup.as_str()).unwrap();
        let group = parsed.root_element();
        assert_eq!((group.attribute("a"), group.attribute("b")), (Some("\"/><x"), Some("32")));
        assert_eq!(group.first_child().unwrap().text(), Some("<&"));
    }
}
