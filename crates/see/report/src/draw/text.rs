//! Tables and small charts for the terminal. Plain text: no colour, so that it reads the same in a
//! file. On a terminal a table is as wide as it at the most: long cells are broken into lines.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::chart::{Series, number};
use super::html::is_figure;

/// A table with aligned columns; columns of figures are set to the right. Without a header row if
/// `header` is empty.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    table_within(header, rows, pagemill_launch::stdio::terminal().flatten())
}

fn table_within(header: &[&str], rows: &[Vec<String>], width: Option<u16>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if let Some(width) = width {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    if !header.is_empty() {
        table.set_header(header.iter().copied());
    }
    table.add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        let mut cells =
            rows.iter().filter_map(|row| row.get(index)).filter(|cell| !cell.is_empty());
        column.set_padding((0, 2));
        // Absent values ("-", "not measured") do not make a column of words.
        if cells.any(|cell| is_figure(cell)) && index > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// The marks of the first, second, … line of a [`chart`]; a later line is drawn over an earlier one.
const MARKS: [char; 8] = ['*', 'o', '+', 'x', '#', '%', '@', '='];

/// Lines over time as characters, `width` by `height` of them inside the axes; the last line is the
/// legend. Points that fall into one column are averaged. Empty if there is nothing to draw.
pub fn chart(series: &[Series], unit: &str, x_unit: &str, width: usize, height: usize) -> String {
    let finite = |point: &&(f64, f64)| point.0.is_finite() && point.1.is_finite();
    let points = || series.iter().flat_map(|series| &series.points).filter(finite);
    let top = points().map(|point| point.1).fold(0.0, f64::max);
    let end = points().map(|point| point.0).fold(0.0, f64::max);
    if points().next().is_none() || width < 2 || height < 2 {
        return String::new();
    }
    let (top, span) = (if top > 0.0 { top } else { 1.0 }, if end > 0.0 { end } else { 1.0 });
    let labels = [number(top), number(top / 2.0), number(0.0)];
    let margin = labels.iter().map(String::len).max().unwrap_or(0);
    let beside = pagemill_launch::stdio::terminal().flatten().map_or(usize::MAX, usize::from);
    let width = width.min(beside.saturating_sub(margin + 2)).max(2);
    let mut grid = vec![vec![' '; width]; height];
    for (index, series) in series.iter().enumerate() {
        let mut columns = vec![(0.0, 0u32); width];
        for point in series.points.iter().filter(finite) {
            let column = (point.0.max(0.0) / span * (width - 1) as f64).round() as usize;
            columns[column].0 += point.1.max(0.0);
            columns[column].1 += 1;
        }
        for (column, (sum, count)) in columns.into_iter().enumerate() {
            if count > 0 {
                let level = (sum / f64::from(count) / top * (height - 1) as f64).round() as usize;
                grid[height - 1 - level][column] = MARKS[index % MARKS.len()];
            }
        }
    }
    let mut text = format!("{unit}\n");
    for (row, line) in grid.iter().enumerate() {
        let label = match row {
            0 => labels[0].as_str(),
            row if row == height - 1 => labels[2].as_str(),
            // Only a row exactly in the middle stands for half of the top.
            row if row * 2 == height - 1 => labels[1].as_str(),
            _ => "",
        };
        let line: String = line.iter().collect();
        text.push_str(format!("{label:>margin$} |{}", line.trim_end()).trim_end());
        text.push('\n');
    }
    let end = format!("{} {x_unit}", number(end));
    text.push_str(&format!("{:margin$} +{}\n", "", "-".repeat(width)));
    text.push_str(&format!("{:margin$}  0{end:>rest$}\n", "", rest = width - 1));
    let legend: Vec<String> = series
        .iter()
        .enumerate()
        .map(|(index, series)| format!("{} {}", MARKS[index % MARKS.len()], series.name))
        .collect();
    text.push_str(&format!("{:margin$}  {}\n", "", legend.join("   ")));
    text
}

/// A horizontal bar of `share` (0 to 1) of `width` characters.
pub fn bar(share: f64, width: usize) -> String {
    let filled =
        if share.is_finite() { (share.clamp(0.0, 1.0) * width as f64).round() } else { 0.0 };
    "#".repeat(filled as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_under_each_other() {
        let rows = vec![
            vec!["glibc".into(), "247.1 MiB".into(), "none".into()],
            vec!["1y".into(), "  9.0 MiB".into(), "remap".into()],
        ];
        assert_eq!(
            table(&["arm", "memory", "back end"], &rows),
            "arm       memory  back end\nglibc  247.1 MiB  none\n1y       9.0 MiB  remap\n"
        );
    }

    #[test]
    fn on_a_narrow_terminal_long_cells_are_broken_and_nothing_is_left_out() {
        let reason = "page walks by the processor's counters, in fewer runs than without them";
        let rows = vec![vec!["page-walks".into(), "12.5 MiB".into(), reason.into()]];
        let wide = table_within(&["what", "size", "why"], &rows, None);
        assert!(wide.lines().any(|line| line.len() > 60), "{wide}");
        let narrow = table_within(&["what", "size", "why"], &rows, Some(40));
        assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
        let words = |text: &str| {
            let mut words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
            words.sort_unstable();
            words
        };
        assert_eq!(words(&narrow), words(&wide));
    }

    #[test]
    fn a_rising_line_rises() {
        let series = Series {
            name: "pss".into(),
            points: (0..5).map(|i| (f64::from(i), f64::from(i))).collect(),
        };
        let expected =
            "MiB\n4 |    *\n  |   *\n2 |  *\n  | *\n0 |*\n  +-----\n   0 4 s\n   * pss\n";
        assert_eq!(chart(&[series], "MiB", "s", 5, 5), expected);
    }

    #[test]
    fn nothing_to_draw_draws_nothing() {
        assert_eq!(chart(&[], "MiB", "s", 40, 8), "");
        let gap = Series { name: "pss".into(), points: vec![(0.0, f64::NAN)] };
        assert_eq!(chart(&[gap], "MiB", "s", 40, 8), "");
    }

    #[test]
    fn bars_stay_in_their_width() {
        assert_eq!(bar(0.5, 10), "#####");
        assert_eq!(bar(7.0, 3), "###");
        assert_eq!(bar(f64::NAN, 3), "");
    }
}
