//! The machine's free memory as text, in the layout of the published study: a row for each zone, a column for each
//! order; and as JSON.

use anyhow::{Context, Result};
use pagemill_analysis::fragmentation::{Score, external, free_pages, largest, unusable};
use pagemill_kernel::page_size;
use pagemill_model::{Bytes, Order};
use pagemill_record::free_memory::{FreeMemory, ZoneFreeMemory};
use serde_json::{Value, json};

use crate::draw::text;

type Index = fn(&[u64], Order) -> Score;

/// Scores of every zone and order, free blocks, what is hidden, and mobilities, whose scores are of `order`.
pub fn text(look: &FreeMemory, order: Order) -> String {
    let mut out = format!(
        "unusable free space index: the share of free memory in blocks too small for the order\n{}\n",
        unusable_table(look)
    );
    out += &format!(
        "external fragmentation index: -1.000 a block is free; else near 1 fragmented, near 0 out of memory\n{}\n",
        external_table(look)
    );
    out += &format!("free blocks\n{}\n", blocks_table(look));
    if let Some(hidden) = look.hidden() {
        let hidden = pages(hidden);
        out += &format!(
            "hidden: {} of free memory is on lists of the processors, in no block and no score (frag compact drains \
             them)\n\n",
            hidden.trim()
        );
    }
    match mobility_table(look, order) {
        Some(table) => out += &format!("mobility\n{table}"),
        None => out += "mobility: not measured (/proc/pagetypeinfo is root's to read)\n",
    }
    out
}

/// The unusable index of every zone and order.
fn unusable_table(look: &FreeMemory) -> String {
    index_table(look, unusable)
}

/// The external fragmentation index of every zone and order.
fn external_table(look: &FreeMemory) -> String {
    index_table(look, external)
}

fn index_table(look: &FreeMemory, index: Index) -> String {
    let mut rows: Vec<Vec<String>> = look
        .zones
        .iter()
        .map(|zone| {
            row(
                &place(zone),
                Order::first(look.orders()).map(|k| index(&zone.blocks, k).to_string()),
            )
        })
        .collect();
    if look.zones.iter().filter(|zone| look.is_large(zone)).count() > 1 {
        let blocks = look.blocks();
        let all = Order::first(look.orders()).map(|k| index(&blocks, k).to_string());
        rows.push(row("large zones together", all));
    }
    text::table(&header(look), &rows)
}

/// Two looks as two tables and the difference of the indices.
pub fn before_after(before: &FreeMemory, after: &FreeMemory) -> String {
    let change = after.zones.iter().map(|zone| {
        let earlier = before.zones.iter().find(|earlier| place(earlier) == place(zone));
        let cell = |order: Order| match earlier {
            Some(earlier) => {
                let change = unusable(&zone.blocks, order).0 - unusable(&earlier.blocks, order).0;
                if change == 0 { "·".into() } else { format!("{:+.3}", change as f64 / 1000.0) }
            }
            None => "-".into(),
        };
        row(&place(zone), Order::first(after.orders()).map(cell))
    });
    let change: Vec<Vec<String>> = change.collect();
    format!(
        "before\n{}\nafter\n{}\nchange\n{}",
        unusable_table(before),
        unusable_table(after),
        text::table(&header(after), &change)
    )
}

/// Free blocks of every zone and order, free memory, and what is hidden.
fn blocks_table(look: &FreeMemory) -> String {
    let mut header = header(look);
    header.extend(["free", "hidden", "largest"]);
    let rows: Vec<Vec<String>> = look
        .zones
        .iter()
        .map(|zone| {
            let mut row = row(&place(zone), zone.blocks.iter().map(u64::to_string));
            row.push(pages(free_pages(&zone.blocks)));
            row.push(zone.hidden.map_or("not measured".into(), pages));
            row.push(largest(&zone.blocks).map_or("-".into(), |order| pages(order.pages())));
            row
        })
        .collect();
    text::table(&header, &rows)
}

/// Pageblocks by mobility, and the free memory of each mobility in blocks of `order` or more.
fn mobility_table(look: &FreeMemory, order: Order) -> Option<String> {
    let types = look.types.as_ref()?;
    let mut rows = Vec::new();
    for blocks in &types.blocks {
        for (mobility, count) in &blocks.count {
            let free = types.free.iter().find(|free| {
                (free.node, &free.zone, &free.mobility) == (blocks.node, &blocks.zone, mobility)
            });
            let free = free.map_or(&[][..], |free| &free.blocks);
            if *count == 0 && free_pages(free) == 0 {
                continue;
            }
            rows.push(vec![
                format!("node {} {}", blocks.node, blocks.zone),
                mobility.clone(),
                count.to_string(),
                pages(free_pages(free)),
                unusable(free, order).to_string(),
            ]);
        }
    }
    let index = format!("unusable, order {order}");
    Some(text::table(&["zone", "mobility", "pageblocks", "free", &index], &rows))
}

/// Free pages in blocks below `order`, by mobility of the pageblocks that they lie in, most first.
pub fn left(look: &FreeMemory, order: Order) -> Vec<(String, u64)> {
    let mut pages: Vec<(String, u64)> = Vec::new();
    for free in look.types.iter().flat_map(|types| &types.free) {
        let large = |zone: &&ZoneFreeMemory| zone.zone == free.zone && look.is_large(zone);
        if look.zones.iter().find(large).is_none() {
            continue;
        }
        let below: u64 =
            (0..).zip(free.blocks.iter().take(order.index())).map(|(k, n)| n << k).sum();
        match pages.iter_mut().find(|(mobility, _)| *mobility == free.mobility) {
            Some((_, sum)) => *sum += below,
            None => pages.push((free.mobility.clone(), below)),
        }
    }
    pages.retain(|(_, pages)| *pages > 0);
    pages.sort_by_key(|(_, pages)| std::cmp::Reverse(*pages));
    pages
}

/// Where the rest is that is still in small blocks: compaction fills no pageblock that is not movable.
pub fn leftover(look: &FreeMemory, order: Order) -> String {
    let page = page_size() as u64;
    let size = |pages: u64| Bytes(pages * page).plain();
    let left = left(look, order);
    if left.is_empty() {
        return String::new();
    }
    let each = left.iter().map(|(mobility, pages)| {
        format!("{} in {} pageblocks", size(*pages), mobility.to_lowercase())
    });
    let sum = left.iter().map(|(_, pages)| pages).sum();
    let each = each.collect::<Vec<_>>().join(", ");
    format!(
        "\nstill in blocks below order {order}: {}: {each}; compaction fills only movable ones\n",
        size(sum)
    )
}

fn pages(count: u64) -> String {
    Bytes(count * page_size() as u64).to_string()
}

fn place(zone: &ZoneFreeMemory) -> String {
    format!("node {} {}", zone.node, zone.zone)
}

fn row(name: &str, cells: impl Iterator<Item = String>) -> Vec<String> {
    std::iter::once(name.to_owned()).chain(cells).collect()
}

fn header(look: &FreeMemory) -> Vec<&'static str> {
    const ORDERS: [&str; 21] = [
        "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16",
        "17", "18", "19", "20",
    ];
    std::iter::once("order").chain(ORDERS.into_iter().take(look.orders())).collect()
}

/// The same as JSON.
pub fn json(look: &FreeMemory) -> Value {
    let index = |blocks: &[u64], index: Index| -> Vec<Value> {
        // The digits that the kernel prints, as a number.
        Order::first(look.orders()).map(|order| json!(index(blocks, order).value())).collect()
    };
    let zones: Vec<Value> = look
        .zones
        .iter()
        .map(|zone| {
            json!({
                "node": zone.node,
                "zone": zone.zone,
                "large": look.is_large(zone),
                "free_blocks": zone.blocks,
                "free_pages": free_pages(&zone.blocks),
                "hidden_pages": zone.hidden,
                "managed_pages": zone.managed,
                "unusable": index(&zone.blocks, unusable),
                "external": index(&zone.blocks, external),
            })
        })
        .collect();
    let types = look.types.as_ref().map(|types| {
        let free = types.free.iter().map(|free| {
            json!({"node": free.node, "zone": free.zone, "mobility": free.mobility, "free_blocks": free.blocks})
        });
        let blocks = types.blocks.iter().map(|blocks| {
            let count: serde_json::Map<String, Value> =
                blocks.count.iter().map(|(name, count)| (name.clone(), json!(count))).collect();
            json!({"node": blocks.node, "zone": blocks.zone, "pageblocks": count})
        });
        json!({
            "pageblock_order": types.pageblock_order,
            "free": free.collect::<Vec<_>>(),
            "pageblocks": blocks.collect::<Vec<_>>(),
        })
    });
    json!({
        "time_ns": u64::try_from(look.time.as_nanos()).unwrap_or(u64::MAX),
        "page_bytes": page_size(),
        "zones": zones,
        "together": {"free_blocks": look.blocks(), "unusable": index(&look.blocks(), unusable)},
        "mobility": types,
    })
}

/// What [`json`] was made of; only what the tables of two moments need.
///
/// # Errors
/// It is no such text.
pub fn parse(text: &str) -> Result<FreeMemory> {
    let expected = "expected what pagemill frag show --json printed";
    let value: Value = serde_json::from_str(text).context(expected)?;
    let zones = value["zones"].as_array().context(expected)?;
    let zone = |zone: &Value| -> Option<ZoneFreeMemory> {
        let blocks = zone["free_blocks"].as_array()?;
        Some(ZoneFreeMemory {
            node: u32::try_from(zone["node"].as_u64()?).ok()?,
            zone: zone["zone"].as_str()?.to_owned(),
            blocks: blocks.iter().map(Value::as_u64).collect::<Option<_>>()?,
            hidden: zone["hidden_pages"].as_u64(),
            managed: zone["managed_pages"].as_u64(),
        })
    };
    let zones = zones.iter().map(zone).collect::<Option<Vec<_>>>().context(expected)?;
    let time = std::time::Duration::from_nanos(value["time_ns"].as_u64().unwrap_or(0));
    Ok(FreeMemory { time, zones, types: None })
}

#[cfg(test)]
mod tests {
    use pagemill_kernel::memory::pagetypeinfo::{Free, PageTypes};

    use super::*;

    fn free_memory(normal: &[u64]) -> FreeMemory {
        let zone = |zone: &str, blocks: &[u64], managed| ZoneFreeMemory {
            node: 0,
            zone: zone.into(),
            blocks: blocks.into(),
            hidden: Some(7),
            managed: Some(managed),
        };
        let zones = vec![
            zone("DMA", &[0, 3, 2, 1, 1, 1, 1, 0, 1, 1, 3], 3974),
            zone("DMA32", &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 100], 500_000),
            zone("Normal", normal, 5_000_000),
        ];
        FreeMemory { time: std::time::Duration::from_secs(1), zones, types: None }
    }

    #[test]
    fn a_row_is_that_of_the_study() {
        let text = unusable_table(&free_memory(&[512, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]));
        let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row[..3], ["node", "0", "DMA"]);
        let scores = "0.000 0.000 0.001 0.003 0.005 0.009 0.017 0.033 0.033 0.098 0.226";
        assert_eq!(row[3..].join(" "), scores);
        assert!(text.contains("large zones together"), "{text}");
    }

    #[test]
    fn a_small_zone_does_not_count_in_the_score_of_all() {
        let look = free_memory(&[512, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        let pages = 102_400 + 1024;
        assert_eq!(free_pages(&look.blocks()), pages);
        assert_eq!(look.unusable(Order(9)).0, (512 * 1000 / pages) as i64);
    }

    #[test]
    fn what_was_written_is_read_and_compared() {
        let before = free_memory(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
        let after = free_memory(&[512, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        let read = parse(&json(&before).to_string()).unwrap();
        assert_eq!(read.zones, before.zones);
        let text = before_after(&read, &after);
        assert!(text.contains("+0.500"), "{text}");
        let error = format!("{:#}", parse("{\"zones\":[{\"node\":0}]}").unwrap_err());
        assert!(error.contains("expected what pagemill frag show --json printed"), "{error}");
    }

    /// Two zones that say they have all the pages there can be ended the program.
    #[test]
    fn more_memory_than_there_can_be_is_compared() {
        let mut before = free_memory(&[u64::MAX; 11]);
        before.zones.iter_mut().for_each(|zone| zone.managed = Some(u64::MAX));
        let read = parse(&json(&before).to_string()).unwrap();
        let after = free_memory(&[0; 11]);
        assert!(before_after(&read, &after).contains("+1.000"));
        assert!(before_after(&after, &read).contains("-1.000"));
    }

    #[test]
    fn what_is_left_is_told_by_mobility_and_small_zones_are_left_out() {
        let zone = |name: &str, managed| ZoneFreeMemory {
            node: 0,
            zone: name.into(),
            blocks: vec![0; 11],
            hidden: None,
            managed: Some(managed),
        };
        let free = |zone: &str, mobility: &str, blocks: &[u64]| Free {
            node: 0,
            zone: zone.into(),
            mobility: mobility.into(),
            blocks: blocks.to_vec(),
        };
        let types = PageTypes {
            free: vec![
                free("DMA", "Unmovable", &[100, 0, 0]),
                free("Normal", "Movable", &[1, 1, 9]),
                free("Normal", "Unmovable", &[2, 3, 9]),
            ],
            ..PageTypes::default()
        };
        let zones = vec![zone("DMA", 10), zone("Normal", 100_000)];
        let look = FreeMemory { time: std::time::Duration::ZERO, zones, types: Some(types) };
        assert_eq!(left(&look, Order(2)), [("Unmovable".to_owned(), 8), ("Movable".to_owned(), 3)]);
        assert!(
            leftover(&look, Order(2))
                .contains("32.0 KiB in unmovable pageblocks, 12.0 KiB in movable")
        );
    }
}
