//! A large C translation unit: input for a compiler.
//!
//! Structures, static tables and functions with loops, switches and calls of earlier functions;
//! all of it defined behaviour (unsigned arithmetic, masked indices and shifts).

use std::io::{self, Write};

use pagemill_model::random::Random;

/// Writes a program of `functions` functions and a `main` that prints a checksum.
///
/// # Errors
/// `out` cannot be written.
pub fn c_program<W: Write>(out: &mut W, functions: usize, seed: u64) -> io::Result<()> {
    let mut random = Random::new(seed);
    writeln!(out, "typedef unsigned int u32;\ntypedef unsigned long long u64;")?;
    writeln!(out, "int printf(const char *, ...);")?;
    for number in 0..functions {
        if number % 8 == 0 {
            record(out, &mut random, number / 8)?;
        }
        function(out, &mut random, number)?;
    }
    writeln!(out, "int main(void) {{\n  u64 sum = 0;")?;
    for number in (0..functions).step_by(7) {
        writeln!(out, "  sum = sum * 31 + f{number}({number}u, sum);")?;
    }
    writeln!(out, "  printf(\"%llx\\n\", sum);\n  return 0;\n}}")
}

fn record<W: Write>(out: &mut W, random: &mut Random, number: usize) -> io::Result<()> {
    writeln!(out, "struct s{number} {{ u32 a; u64 b; u32 c[{}]; u64 d; }};", 4 + random.index(5))?;
    write!(out, "static const u32 t{number}[16] = {{")?;
    for _ in 0..16 {
        write!(out, "{}u,", random.bits() as u32)?;
    }
    writeln!(out, "}};")
}

fn function<W: Write>(out: &mut W, random: &mut Random, number: usize) -> io::Result<()> {
    let record = number / 8;
    writeln!(out, "static u64 f{number}(u32 x, u64 y) {{")?;
    writeln!(out, "  struct s{record} s = {{ x, y, {{ x ^ {}u }}, y }};", random.index(1 << 30))?;
    writeln!(out, "  u64 r = y;")?;
    for _ in 0..4 + random.index(8) {
        let constant = random.bits() as u32;
        let shift = 1 + random.index(30);
        match random.index(5) {
            0 => writeln!(
                out,
                "  for (u32 i = 0; i < (x & {}u); i++) {{ s.c[i & 3] += t{record}[(i + x) & 15]; r += s.c[(i >> 1) & \
                 3] ^ {constant}u; }}",
                7 + random.index(25),
            )?,
            1 => {
                writeln!(out, "  switch ((r >> {shift}) & 7) {{")?;
                for case in 0..7 {
                    writeln!(
                        out,
                        "  case {case}: s.a {}= {}u; r ^= s.b >> {}; break;",
                        random.pick(&["+", "^", "*", "|"]),
                        random.bits() as u32,
                        1 + random.index(60),
                    )?;
                }
                writeln!(out, "  default: r = ~r; break;\n  }}")?;
            }
            2 => writeln!(
                out,
                "  if ((s.a ^ x) & {}u) {{ s.d = r * {constant}ull; }} else {{ s.d = (r >> {shift}) + s.c[x & 3]; }}",
                1 << random.index(12),
            )?,
            3 if number > 0 => writeln!(
                out,
                "  r += (x & {}u) ? f{}(x >> 3, r ^ s.d) : s.a;",
                1 << random.index(6),
                number - 1 - random.index(number.min(6)),
            )?,
            _ => writeln!(
                out,
                "  r = (r << {shift} | r >> {}) ^ (s.d + {constant}u); s.b += r; s.a += (u32)(r >> 32);",
                64 - shift,
            )?,
        }
    }
    writeln!(out, "  return r + s.a + s.b + s.c[x & 3] + s.d;\n}}")
}
