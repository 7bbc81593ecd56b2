//! A mailbox: plain, HTML and attached messages, some of which look like unsolicited ones, so that
//! a mail filter's rules have something to match.

use std::io::{self, Write};

use pagemill_model::random::Random;

const PLAIN: [&str; 24] = [
    "the", "meeting", "notes", "are", "attached", "please", "review", "by", "Friday", "budget",
    "draft", "release", "patch", "server", "kernel", "thanks", "regards", "question", "about",
    "memory", "pages", "we", "should", "discuss",
];
const PUSHY: [&str; 16] = [
    "FREE",
    "offer",
    "click here",
    "limited time",
    "winner",
    "$$$",
    "viagra",
    "guarantee",
    "unsubscribe",
    "million dollars",
    "act now",
    "cheap meds",
    "100% risk free",
    "lottery",
    "dear friend",
    "mortgage rates",
];
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Writes `messages` messages in mbox format.
///
/// # Errors
/// `out` cannot be written.
pub fn mailbox<W: Write>(out: &mut W, messages: usize, seed: u64) -> io::Result<()> {
    let mut random = Random::new(seed);
    for number in 0..messages {
        message(out, &mut random, number)?;
    }
    Ok(())
}

fn message<W: Write>(out: &mut W, random: &mut Random, number: usize) -> io::Result<()> {
    let pushy = random.index(3) == 0;
    let (day, hour, minute) = (1 + number % 28, random.index(24), random.index(60));
    let from = format!("user{}@example{}.org", random.index(500), random.index(40));
    let subject = text(random, 4 + number % 5, pushy);
    writeln!(out, "From {from} Mon Jan {day:>2} {hour:02}:{minute:02}:00 2024")?;
    for hop in 0..1 + random.index(4) {
        writeln!(
            out,
            "Received: from relay{hop}.example.net (relay{hop}.example.net [192.0.2.{}])\n\tby mx.example.com \
             (8.15.2) with ESMTP id {:016x};\n\tMon, {day} Jan 2024 {hour:02}:{minute:02}:00 +0000",
            1 + random.index(250),
            random.bits(),
        )?;
    }
    writeln!(out, "From: \"User {}\" <{from}>", random.index(500))?;
    writeln!(out, "To: list@example.com\nSubject: {subject}")?;
    writeln!(out, "Date: Mon, {day} Jan 2024 {hour:02}:{minute:02}:00 +0000")?;
    writeln!(out, "Message-ID: <{:016x}.{number}@example.org>", random.bits())?;
    writeln!(out, "MIME-Version: 1.0")?;
    let paragraphs = 3 + random.index(40);
    match random.index(3) {
        0 => {
            writeln!(out, "Content-Type: text/plain; charset=us-ascii\n")?;
            body(out, random, paragraphs, pushy)?;
        }
        1 => {
            writeln!(out, "Content-Type: text/html; charset=utf-8\n\n<html><body>")?;
            for _ in 0..paragraphs {
                let words = text(random, 40, pushy);
                let link = random.index(1000);
                writeln!(
                    out,
                    "<p style=\"color:#{:06x}\">{words} <a href=\"http://www.example{link}.com/{link}\">{}</a></p>",
                    random.index(1 << 24),
                    text(random, 2, pushy),
                )?;
            }
            writeln!(out, "</body></html>")?;
        }
        _ => {
            let mark = format!("part{:016x}", random.bits());
            writeln!(out, "Content-Type: multipart/mixed; boundary=\"{mark}\"\n\n--{mark}")?;
            writeln!(out, "Content-Type: text/plain; charset=us-ascii\n")?;
            body(out, random, paragraphs, pushy)?;
            writeln!(
                out,
                "--{mark}\nContent-Type: application/octet-stream; name=\"data.bin\"\nContent-Transfer-Encoding: \
                 base64\n"
            )?;
            for _ in 0..20 + random.index(400) {
                let line: Vec<u8> = (0..76).map(|_| BASE64[random.index(64)]).collect();
                out.write_all(&line)?;
                writeln!(out)?;
            }
            writeln!(out, "--{mark}--")?;
        }
    }
    writeln!(out)
}

fn body<W: Write>(
    out: &mut W,
    random: &mut Random,
    paragraphs: usize,
    pushy: bool,
) -> io::Result<()> {
    for _ in 0..paragraphs {
        for _ in 0..1 + random.index(5) {
            writeln!(out, "{}", text(random, 10, pushy))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// `count` words; never begins with `From `, which would begin a message.
fn text(random: &mut Random, count: usize, pushy: bool) -> String {
    let mut text = String::new();
    for place in 0..count {
        if place > 0 {
            text.push(' ');
        }
        let list: &[&str] = if pushy && random.index(4) == 0 { &PUSHY } else { &PLAIN };
        text.push_str(random.pick(list));
    }
    text
}
