//! A script for the SQLite shell: tables, indices, joins, updates and deletes on text of varying
//! length, ending with an integrity check and sums that any correct run prints alike.

use std::io::{self, Write};

use pagemill_model::random::Random;

const WORDS: [&str; 16] = [
    "amber", "birch", "copper", "delta", "ember", "fjord", "garnet", "harbor", "indigo", "juniper",
    "krill", "lagoon", "marble", "nectar", "opal", "pewter",
];

/// Writes a script that inserts `rows` rows into an in-memory database and works on them.
///
/// # Errors
/// `out` cannot be written.
pub fn sql_script<W: Write>(out: &mut W, rows: usize, seed: u64) -> io::Result<()> {
    let mut random = Random::new(seed);
    writeln!(out, "CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, note TEXT, price INT);")?;
    writeln!(out, "CREATE TABLE sale(id INTEGER PRIMARY KEY, item INT, who TEXT, amount INT);")?;
    writeln!(out, "CREATE INDEX item_name ON item(name);\nCREATE INDEX sale_item ON sale(item);")?;
    writeln!(out, "BEGIN;")?;
    for row in 0..rows {
        let note = words(&mut random, 2 + row % 30);
        let price = random.index(10_000);
        let name = format!("{}-{}", random.pick(&WORDS), random.index(rows));
        writeln!(out, "INSERT INTO item(name,note,price) VALUES('{name}','{note}',{price});")?;
        if row % 3 == 0 {
            let item = 1 + random.index(rows);
            let who = words(&mut random, 2);
            let amount = 1 + random.index(9);
            writeln!(out, "INSERT INTO sale(item,who,amount) VALUES({item},'{who}',{amount});")?;
        }
    }
    writeln!(out, "COMMIT;")?;
    for word in WORDS {
        writeln!(
            out,
            "SELECT sale.who, count(*), sum(item.price * sale.amount) FROM sale JOIN item ON item.id = sale.item \
             WHERE item.name LIKE '{word}%' GROUP BY sale.who ORDER BY 3 DESC, 1 LIMIT 5;"
        )?;
        writeln!(
            out,
            "UPDATE item SET note = note || ' {word}', price = price + 1 WHERE name LIKE '{word}-1%';"
        )?;
        writeln!(out, "DELETE FROM item WHERE name LIKE '{word}-3%';")?;
        writeln!(
            out,
            "SELECT count(DISTINCT notes) FROM (SELECT group_concat(upper(note)) AS notes FROM item WHERE name > \
             '{word}' GROUP BY price / 100);"
        )?;
    }
    writeln!(out, "SELECT count(*), sum(price), sum(length(note)) FROM item;")?;
    writeln!(out, "PRAGMA integrity_check;")
}

fn words(random: &mut Random, count: usize) -> String {
    let mut text = String::new();
    for place in 0..count {
        if place > 0 {
            text.push(' ');
        }
        text.push_str(random.pick(&WORDS));
    }
    text
}
