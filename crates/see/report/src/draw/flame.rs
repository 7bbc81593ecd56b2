//! The flame graph of resident memory: who asked for what was not touched after a moment, which the reader chooses.
//!
//! Always true: names reach the page as data, never as markup, as in [`super::heat_map`].

use pagemill_analysis::cold_stacks::{numbered, stacks};
use pagemill_analysis::heat::HeatView;
use serde_json::json;

use super::markup::script;

const SCRIPT: &str = include_str!("flame.js");

pub(super) const STYLE: &str = "\
                                .flame { position: relative; overflow: hidden; } .flame button \
                                { position: absolute; height: 1.4rem; padding: 0 .3rem; overflow: hidden;
  white-space: nowrap; text-align: left; font: inherit; font-size: 12px; cursor: zoom-in;
  border: 1px solid var(--page); border-radius: 2px;
  color: #18181b; background: hsl(var(--hue) 80% 72%); }
#flame-after { width: min(45vw, 30rem); vertical-align: middle; }
";

/// Controls, data and script; nothing where no page is known to be resident.
pub(super) fn markup(view: &HeatView, page: u64) -> Option<String> {
    let stacks = stacks(view, page);
    let (frames, rows) = numbered(&stacks);
    if rows.is_empty() {
        return None;
    }
    let rows: Vec<_> = rows.iter().zip(stacks.iter().map(|stack| &stack.last_touched)).collect();
    let data = json!({ "step": view.step, "steps": view.steps, "frames": frames, "stacks": rows });
    let steps = view.steps.max(1);
    let controls = format!(
        "<noscript><p>The flame graph needs scripts; pagemill export REC --format folded -o FILE \
         says what it shows.</p></noscript>\n\
         <p class=\"controls\"><label>not touched after <input id=\"flame-after\" type=\"range\" min=\"1\" \
         max=\"{steps}\" value=\"{}\"/></label> <span id=\"flame-when\"></span></p>\n\
         <div id=\"flame-graph\" class=\"flame\"></div>\n\
         <p class=\"soft\">Each bar is a function or object, below those that called it, as wide as its bytes. Click \
         one \
         for it alone, one above it to go back. What was touched or given back only near the end, after most of its \
         life, counts as not touched since.</p>\n",
        steps.div_ceil(2)
    );
    Some(controls + &script("flame", &data, SCRIPT))
}

#[cfg(test)]
mod tests {
    use pagemill_analysis::heat::ObjectHeat;

    use super::*;

    #[test]
    fn names_cannot_end_the_data_and_without_residents_there_is_no_graph() {
        let mut object = ObjectHeat {
            name: "</script><script>alert(1)".into(),
            kind: "allocation".into(),
            detail: vec!["make & take".into(), "main".into()],
            ..ObjectHeat::default()
        };
        let view =
            |object| HeatView { step: 1, steps: 4, objects: vec![object], ..HeatView::default() };
        assert_eq!(markup(&view(object.clone()), 4096), None);
        object.last_touched = vec![(0, 2), (3, 1)];
        object.detail.insert(0, object.name.clone());
        let html = markup(&view(object), 4096).unwrap();
        assert_eq!(html.matches("<script").count(), 2, "{html}");
        assert_eq!(html.matches("</script").count(), 2, "{html}");
        assert!(html.contains("\"stacks\":[[[0,1,2],[[0,8192],[3,4096]]]]"), "{html}");
        assert!(html.contains("max=\"4\" value=\"2\""), "{html}");
    }

    #[test]
    fn the_script_fetches_nothing_and_writes_no_markup() {
        super::super::markup::assert_harmless(SCRIPT);
    }
}
