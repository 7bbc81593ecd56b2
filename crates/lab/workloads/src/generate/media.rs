//! Inputs that programs of SPEC's kinds read: text to pack, a table to transform, proteins to search, a game to play,
//! a film to encode, a scene to draw. Each a function of its size and seed.

use std::io::{self, Write};

use pagemill_model::random::Random;

const LETTERS: &[u8] = b"eeeeeeeeeeeettttttttaaaaaaaaooooooooiiiiiiinnnnnnnssssssshhhhhhrrrrrr\
    ddddlllluuuccmmwwffggyyppbbvk";
const AMINO_ACIDS: &[u8] = b"ACDEFGHIKLMNPQRSTVWY";
/// Residues of a query and of each sequence of the database.
const RESIDUES: usize = 240;

/// Words whose ranks follow Zipf's law, in lines, `kib` KiB of them.
///
/// # Errors
/// `out` cannot be written.
pub fn prose<W: Write>(out: &mut W, kib: usize, seed: u64) -> io::Result<()> {
    let mut random = Random::new(seed);
    let words: Vec<Vec<u8>> = (0..4096).map(|_| word(&mut random)).collect();
    let (mut written, mut column) = (0, 0);
    while written < kib * 1024 {
        // Density 1/x over the ranks.
        let rank = (words.len() as f64).powf(random.unit()) as usize - 1;
        let word = &words[rank.min(words.len() - 1)];
        out.write_all(word)?;
        column += word.len() + 1;
        let ends = column > 72;
        out.write_all(if ends { b"\n" } else { b" " })?;
        written += word.len() + 1;
        column = if ends { 0 } else { column };
    }
    Ok(())
}

fn word(random: &mut Random) -> Vec<u8> {
    let length = 2 + random.index(9);
    (0..length).map(|_| LETTERS[random.index(LETTERS.len())]).collect()
}

/// An XML document of so many articles, for [`STYLESHEET`].
///
/// # Errors
/// `out` cannot be written.
pub fn articles<W: Write>(out: &mut W, count: usize, seed: u64) -> io::Result<()> {
    let mut random = Random::new(seed);
    writeln!(out, "<?xml version=\"1.0\"?>\n<shop>")?;
    for at in 0..count {
        let name = random.index(count / 4 + 1);
        let price = 1 + random.index(9999);
        write!(out, "<article id=\"{at}\"><name>n{name}</name><price>{price}</price><text>")?;
        for _ in 0..12 {
            out.write_all(&word(&mut random))?;
            out.write_all(b" ")?;
        }
        writeln!(out, "</text></article>")?;
    }
    writeln!(out, "</shop>")
}

/// Sorts the articles by price, counts those of each name and changes letters of their text.
pub const STYLESHEET: &str = r#"<?xml version="1.0"?>
<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
<xsl:output method="html"/>
<xsl:key name="same" match="article" use="name"/>
<xsl:template match="/"><html><body><table>
<xsl:apply-templates select="shop/article"><xsl:sort select="price" data-type="number"/></xsl:apply-templates>
</table></body></html></xsl:template>
<xsl:template match="article"><tr><td><xsl:value-of select="@id"/></td>
<td><xsl:value-of select="count(key('same', name))"/></td>
<td><xsl:value-of select="translate(text, 'aeiou', 'AEIOU')"/></td></tr></xsl:template>
</xsl:stylesheet>
"#;

/// So many proteins in FASTA; [`proteins`] of the same seed has relatives of the first four.
///
/// # Errors
/// `out` cannot be written.
pub fn queries<W: Write>(out: &mut W, count: usize, seed: u64) -> io::Result<()> {
    let mut random = Random::new(seed);
    for at in 0..count {
        writeln!(out, ">query{at}\n{}", protein(&mut random))?;
    }
    Ok(())
}

/// A database of `count` proteins, every twentieth a relative of one of the [`queries`] of this seed.
///
/// # Errors
/// `out` cannot be written.
pub fn proteins<W: Write>(out: &mut W, count: usize, seed: u64) -> io::Result<()> {
    let mut random = Random::new(seed);
    let families: Vec<String> = (0..4).map(|_| protein(&mut random)).collect();
    for at in 0..count {
        let mut one = protein(&mut random).into_bytes();
        if at % 20 == 0 {
            let family = families[at / 20 % families.len()].as_bytes();
            for (mine, theirs) in one.iter_mut().zip(family) {
                if random.chance(0.6) {
                    *mine = *theirs;
                }
            }
        }
        writeln!(out, ">protein{at}\n{}", String::from_utf8_lossy(&one))?;
    }
    Ok(())
}

fn protein(random: &mut Random) -> String {
    let residue = |random: &mut Random| char::from(AMINO_ACIDS[random.index(AMINO_ACIDS.len())]);
    (0..RESIDUES).map(|_| residue(random)).collect()
}

/// Commands of the Go text protocol: a board of 13 lines, stones where the seed says, then `moves` moves of each side.
///
/// # Errors
/// `out` cannot be written.
pub fn go_game<W: Write>(out: &mut W, moves: usize, seed: u64) -> io::Result<()> {
    let mut random = Random::new(seed);
    writeln!(out, "boardsize 13\nclear_board")?;
    let mut points: Vec<(char, usize)> =
        "CEGJL".chars().flat_map(|column| [3, 5, 7, 9, 11].map(|row| (column, row))).collect();
    random.shuffle(&mut points);
    for (at, (column, row)) in points.iter().take(6).enumerate() {
        let side = if at % 2 == 0 { "black" } else { "white" };
        writeln!(out, "play {side} {column}{row}")?;
    }
    for _ in 0..moves {
        writeln!(out, "genmove black\ngenmove white")?;
    }
    writeln!(out, "showboard\nquit")
}

/// A film of `frames` frames in YUV4MPEG2, 352 by 288: patterns that move, with noise.
///
/// # Errors
/// `out` cannot be written.
pub fn film<W: Write>(out: &mut W, frames: usize, seed: u64) -> io::Result<()> {
    const WIDTH: usize = 352;
    const HEIGHT: usize = 288;
    let mut random = Random::new(seed);
    writeln!(out, "YUV4MPEG2 W{WIDTH} H{HEIGHT} F25:1 Ip A1:1 C420jpeg")?;
    let mut row = vec![0_u8; WIDTH];
    for frame in 0..frames {
        writeln!(out, "FRAME")?;
        for y in 0..HEIGHT {
            for (x, pixel) in row.iter_mut().enumerate() {
                let shape = ((x + 3 * frame) / 16 + (y + 2 * frame) / 16) % 7 * 30;
                *pixel = (shape + (random.bits() & 15) as usize) as u8;
            }
            out.write_all(&row)?;
        }
        for plane in 0..2 {
            for y in 0..HEIGHT / 2 {
                for (x, pixel) in row[..WIDTH / 2].iter_mut().enumerate() {
                    *pixel = (96 + (if plane == 0 { x } else { y } + frame) / 8 % 64) as u8;
                }
                out.write_all(&row[..WIDTH / 2])?;
            }
        }
    }
    Ok(())
}

/// A scene for a ray tracer: so many spheres over a mirror.
///
/// # Errors
/// `out` cannot be written.
pub fn scene<W: Write>(out: &mut W, spheres: usize, seed: u64) -> io::Result<()> {
    let mut random = Random::new(seed);
    writeln!(out, "#version 3.7; global_settings {{ assumed_gamma 1.0 }}")?;
    writeln!(out, "camera {{ location <0, 8, -24> look_at <0, 2, 0> }}")?;
    writeln!(out, "light_source {{ <20, 30, -20> rgb 1 }}")?;
    writeln!(
        out,
        "plane {{ y, -1 pigment {{ checker rgb 1 rgb 0.3 }} finish {{ reflection 0.2 }} }}"
    )?;
    for _ in 0..spheres {
        let mut within = |low: f64, high: f64| low + random.unit() * (high - low);
        let (x, y, z) = (within(-10.0, 10.0), within(0.0, 8.0), within(-10.0, 10.0));
        let (radius, hue) = (within(0.1, 0.5), within(0.1, 1.0));
        write!(out, "sphere {{ <{x:.3}, {y:.3}, {z:.3}>, {radius:.3} ")?;
        writeln!(
            out,
            "pigment {{ rgb <{hue:.2}, 0.5, 0.3> }} finish {{ phong 0.6 reflection 0.1 }} }}"
        )?;
    }
    Ok(())
}
