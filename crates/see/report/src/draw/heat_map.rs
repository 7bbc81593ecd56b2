//! The heat map of a page: objects over time, drawn by a script that is in the file with its data.
//!
//! It is what a chart of fixed lines cannot be: layers to choose from, zoom, and what is under the pointer. Without
//! scripts the tables of the report say the same.
//!
//! Always true: names reach the page as data, never as markup: `<` and `&` are written as escapes of JSON, and the
//! script puts texts into elements as texts.

use pagemill_analysis::heat::{HeatView, ObjectHeat};
use serde_json::{Value, json};

use super::markup::script;

const SCRIPT: &str = include_str!("heat_map.js");

const CONTROLS: &str = "\
<noscript><p>The heat map needs scripts; the tables below say what it shows.</p></noscript>
<p class=\"controls\">
<label><input type=\"radio\" name=\"layer\" value=\"accesses\" checked=\"\"/> accesses</label>
<label><input type=\"radio\" name=\"layer\" value=\"reads\"/> reads</label>
<label><input type=\"radio\" name=\"layer\" value=\"writes\"/> writes</label>
<label><input type=\"radio\" name=\"layer\" value=\"first\"/> first touch</label>
<label><input type=\"radio\" name=\"layer\" value=\"sharing\"/> sharing</label>
<label>order <select id=\"order\"><option value=\"accesses\">accesses</option>
<option value=\"size\">size</option><option value=\"first\">first touch</option>
<option value=\"name\">kind and name</option></select></label>
<label>show <select id=\"count\"><option>15</option><option selected=\"\">30</option>
<option>100</option><option>500</option></select></label>
<label>find <input id=\"find\" type=\"search\" size=\"12\"/></label></p>
<div class=\"map\"><canvas id=\"map\" style=\"width:100%\"></canvas></div>
<div id=\"tip\" class=\"tip\" hidden=\"\"></div>
<p class=\"soft\"><span id=\"scale\"></span>. <span id=\"left\"></span> Drag, or Shift and wheel, to zoom in time;
click a name for that object alone; double-click for all.</p>
";

pub(super) const STYLE: &str = "\
.controls label { margin-right: .9rem; white-space: nowrap; } p.soft { color: var(--soft); }
.map { width: min(94vw, 90rem); margin-left: calc(50% - min(47vw, 45rem)); cursor: crosshair; }
.tip { position: fixed; max-width: 34rem; background: var(--page); border: 1px solid var(--line);
  border-radius: 4px; padding: .4rem .6rem;
  font-size: 12px; box-shadow: 0 2px 8px #0005; pointer-events: none; overflow-wrap: anywhere; }
.tip b { display: block; }
";

fn object(object: &ObjectHeat) -> Value {
    // Twice 32 bits: JavaScript's numbers do not hold 64.
    let cells = object.cells.iter().map(|(slice, step, heat)| {
        let (low, high) = (heat.threads & 0xffff_ffff, heat.threads >> 32);
        [*slice, *step, heat.reads, heat.writes, heat.first, low, high]
    });
    json!({
        "n": object.name, "k": object.kind, "d": object.detail, "b": object.bytes, "p": object.pages,
        "w": object.written, "r": object.total.reads, "wr": object.total.writes, "f": object.first_by,
        "l": object.lines, "s": object.slices.max(1), "c": cells.collect::<Vec<_>>(),
    })
}

/// Controls, data and script.
pub(super) fn markup(view: &HeatView, page: u64) -> String {
    let data = json!({
        "step": view.step, "steps": view.steps, "threads": view.threads, "page": page,
        "working": view.working_set,
        "lines": view.lines.iter().map(|line| &line.name).collect::<Vec<_>>(),
        "objects": view.objects.iter().map(object).collect::<Vec<_>>(),
    });
    CONTROLS.to_owned() + &script("heat", &data, SCRIPT)
}

#[cfg(test)]
mod tests {
    use pagemill_analysis::heat::Heat;

    use super::*;

    #[test]
    fn names_cannot_end_the_data_and_threads_beyond_32_are_told() {
        let heat = Heat { reads: 1, writes: 0, first: 1, threads: 1 << 40 | 1 };
        let name = "</script><script>alert(1)".to_owned();
        let object =
            ObjectHeat { name, slices: 1, cells: vec![(0, 3, heat)], ..ObjectHeat::default() };
        let view = HeatView { step: 1, steps: 4, objects: vec![object], ..HeatView::default() };
        let html = markup(&view, 4096);
        assert_eq!(html.matches("<script").count(), 2);
        assert_eq!(html.matches("</script").count(), 2);
        assert!(html.contains("[0,3,1,0,1,1,256]"), "{html}");
    }

    #[test]
    fn the_script_fetches_nothing_and_writes_no_markup() {
        super::super::markup::assert_harmless(SCRIPT);
    }
}
