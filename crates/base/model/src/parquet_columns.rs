//! The columns of a Parquet file, from bytes that anybody may have made.
//!
//! Read is what [`crate::dataset`] writes and no more: columns of `INT64` and `DOUBLE`, lists of the first, and text;
//! data pages of the first version; values plain, by dictionary, or as differences; plain or zstd. What is anything
//! else is an error.
//!
//! ```text
//!  "PAR1" | chunk … | footer | length of the footer 4 | "PAR1"
//!  footer   schema; of each group of rows, of each column: path, where its chunk lies, how many values it has
//!  chunk    [dictionary page] | data page …
//!  page     header | repetition levels | definition levels | values          after the header compressed
//! ```
//!
//! Footer and headers are in Thrift's compact protocol, which is read into a tree of [`Value`]s.
//!
//! Always true: no bytes make this panic, which the lints of this module see to: nothing is indexed, nothing unwrapped.
//! What is allocated is in proportion to the bytes that there are, whatever lengths and counts these name
//! ([`AllocationBudget`]).

use std::collections::HashMap;
use std::iter;

/// What the Parquet library says.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Rows of a file: parts are closed with half of it.
const MOST_ROWS: u64 = if cfg!(test) { 1 << 16 } else { 1 << 19 };
/// Rows, values of lists or bytes of text for each byte of the file …
const MOST_A_BYTE: u64 = 64;
/// … and of a file however small: equal ones take next to no bytes. A part is closed with a quarter of these values,
/// but its last row may have many.
const ALWAYS: u64 = 1 << 24;
const ROWS_ALWAYS: u64 = 1 << 18;
/// Bytes of a page, and for each byte that they are compressed to.
const MOST_OF_A_PAGE: usize = 1 << 28;
const MOST_COMPRESSED: usize = 1 << 15;
/// How deep what is read may be nested.
const DEEPEST: u32 = 12;

/// The parts of a footer, and of a column's metadata, by their numbers in `parquet.thrift`.
mod field {
    pub const SCHEMA: i16 = 2;
    pub const GROUPS: i16 = 4;
    pub const CHUNKS: i16 = 1;
    pub const ROWS: i16 = 3;
    pub const METADATA: i16 = 3;
}

/// A file whose footer was read.
#[derive(Debug)]
pub struct File<'a> {
    bytes: &'a [u8],
    /// Its groups of rows.
    pub groups: Vec<Group>,
}

/// A group of rows.
#[derive(Debug)]
pub struct Group {
    /// How many.
    pub rows: usize,
    chunks: HashMap<String, Chunk>,
}

/// A column of a group.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    kind: Kind,
    /// The most that its definition and repetition levels may be.
    levels: (u8, u8),
    compressed: bool,
    values: u64,
    start: usize,
    length: usize,
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `INT64`.
    Number,
    /// `DOUBLE`, read as the `INT64` of the same bits.
    Real,
    /// `BYTE_ARRAY`.
    Text,
    Other,
}

/// A column, read: levels of all its entries, and the values of those that have one.
#[derive(Debug, Default)]
pub struct Column {
    /// 0: absent; the most that there is: a value.
    pub definition: Vec<u8>,
    /// 0: a row begins. Of a list alone.
    pub repetition: Vec<u8>,
    /// Values of numbers.
    pub numbers: Vec<i64>,
    /// Values of text.
    pub texts: Vec<String>,
}

/// What may still be allocated for what a file holds.
#[derive(Debug)]
pub struct AllocationBudget(u64);

impl AllocationBudget {
    fn take(&mut self, wanted: u64) -> Outcome<()> {
        self.0 =
            self.0.checked_sub(wanted).ok_or("it says that it holds more than it has bytes for")?;
        Ok(())
    }
}

impl<'a> File<'a> {
    /// Reads the footer.
    pub fn open(bytes: &'a [u8]) -> Outcome<Self> {
        let inner = bytes.strip_prefix(b"PAR1").and_then(|rest| rest.strip_suffix(b"PAR1"));
        let (rest, length) = inner
            .and_then(|inner| inner.split_last_chunk())
            .ok_or("it is no whole Parquet file")?;
        let length = usize::try_from(u32::from_le_bytes(*length))?;
        let at = rest.len().checked_sub(length).ok_or("its footer is longer than the file")?;
        let mut footer = Bytes(rest.get(at..).unwrap_or_default());
        let footer = footer.structure(DEEPEST)?;
        let columns = leaves(footer.list(field::SCHEMA)?)?;
        let mut rows = 0_u64;
        let mut groups = Vec::new();
        for group in footer.list(field::GROUPS)? {
            let chunks = group.list(field::CHUNKS)?.iter().map(|chunk| chunk_of(chunk, &columns));
            let count = group.number(field::ROWS)?;
            rows = rows.saturating_add(count);
            groups.push(Group {
                rows: usize::try_from(count)?,
                chunks: chunks.collect::<Outcome<_>>()?,
            });
        }
        // A column of equal values takes a few bytes a page whatever its length, so this is not exact.
        let most = most(bytes, ROWS_ALWAYS).min(MOST_ROWS);
        if rows > most {
            return Err(format!("{rows} rows in {} bytes", bytes.len()).into());
        }
        Ok(Self { bytes, groups })
    }

    /// What the columns of this file may hold together, beside one value a row.
    pub fn budget(&self) -> AllocationBudget {
        AllocationBudget(most(self.bytes, ALWAYS))
    }

    /// A column of a group, `None` if the group has none of that name, or an error if that is of another kind.
    pub fn column(
        &self,
        group: &Group,
        (name, kind, list): (&str, Kind, bool),
        budget: &mut AllocationBudget,
    ) -> Outcome<Option<Column>> {
        let path = if list { format!("{name}.list.element") } else { name.to_owned() };
        let Some(chunk) = group.chunks.get(&path) else { return Ok(None) };
        if (chunk.kind, chunk.levels) != (kind, if list { (2, 1) } else { (1, 0) }) {
            return Err(format!("column {name} has another type").into());
        }
        let more = chunk.values.checked_sub(group.rows as u64).filter(|more| list || *more == 0);
        budget.take(more.ok_or("a column has another length than its rows")?)?;
        let end = chunk.start.checked_add(chunk.length);
        let bytes = end.and_then(|end| self.bytes.get(chunk.start..end));
        let mut bytes = Bytes(bytes.ok_or("a column lies outside of the file")?);
        let mut column = Column::default();
        let mut dictionary = Column::default();
        while (column.definition.len() as u64) < chunk.values {
            page(&mut bytes, chunk, &mut dictionary, &mut column, budget)
                .map_err(|error| format!("column {name}: {error}"))?;
        }
        Ok(Some(column))
    }
}

fn most(bytes: &[u8], always: u64) -> u64 {
    (bytes.len() as u64).saturating_mul(MOST_A_BYTE).saturating_add(always)
}

/// The most that definition and repetition levels may be, of each column, by its path.
fn leaves(elements: &[Value<'_>]) -> Outcome<HashMap<String, (u8, u8)>> {
    /// One that is open: how many of its children are to come, its path, and its levels.
    type Open = (u64, String, (u8, u8));
    let mut open: Vec<Open> = Vec::new();
    let mut leaves = HashMap::new();
    for (at, element) in elements.iter().enumerate() {
        let children = element.find(5).map_or(Ok(0), Value::whole)?;
        let (mut path, mut levels) = (String::new(), (0, 0));
        if at > 0 {
            while open.pop_if(|(left, ..)| *left == 0).is_some() {}
            let Some((left, above, (definition, repetition))) = open.last_mut() else {
                return Err("its schema has a column too many".into());
            };
            *left = left.saturating_sub(1);
            let name = element.text(4)?;
            path = if above.is_empty() { name.to_owned() } else { format!("{above}.{name}") };
            levels = match element.number(3)? {
                0 => (*definition, *repetition),
                1 => (definition.saturating_add(1), *repetition),
                _ => (definition.saturating_add(1), repetition.saturating_add(1)),
            };
        }
        if children > 0 || at == 0 {
            if open.len() as u32 >= DEEPEST {
                return Err("its schema is too deep".into());
            }
            open.push((children, path, levels));
        } else {
            leaves.insert(path, levels);
        }
    }
    Ok(leaves)
}

/// A column chunk, as the footer tells of it, and the path of its column.
fn chunk_of(chunk: &Value<'_>, columns: &HashMap<String, (u8, u8)>) -> Outcome<(String, Chunk)> {
    let metadata = chunk.find(field::METADATA).ok_or("a column has no metadata")?;
    let names = metadata.list(3)?.iter().map(Value::as_text);
    let path = names.collect::<Outcome<Vec<_>>>()?.join(".");
    let levels = *columns.get(&path).ok_or("a column is not in the schema")?;
    // A dictionary lies in front of the data.
    let dictionary = metadata.find(11).map(Value::whole).transpose()?.filter(|at| *at > 0);
    let data = metadata.number(9)?;
    let chunk = Chunk {
        kind: match metadata.number(1)? {
            2 => Kind::Number,
            5 => Kind::Real,
            6 => Kind::Text,
            _ => Kind::Other,
        },
        levels,
        compressed: match metadata.number(4)? {
            0 => false,
            6 => true,
            other => return Err(format!("it is compressed in the unknown way {other}").into()),
        },
        values: metadata.number(5)?,
        start: usize::try_from(dictionary.map_or(data, |at| at.min(data)))?,
        length: usize::try_from(metadata.number(7)?)?,
    };
    Ok((path, chunk))
}

/// Reads the page in front, of the data or of the dictionary.
fn page(
    bytes: &mut Bytes<'_>,
    chunk: &Chunk,
    dictionary: &mut Column,
    column: &mut Column,
    budget: &mut AllocationBudget,
) -> Outcome<()> {
    let header = bytes.structure(DEEPEST)?;
    let (whole, packed) = (header.number(2)?, header.number(3)?);
    let body = bytes.take(usize::try_from(packed)?)?;
    let content;
    let mut body = Bytes(if chunk.compressed {
        let whole = usize::try_from(whole)?;
        if whole > MOST_OF_A_PAGE.min(body.len().saturating_mul(MOST_COMPRESSED)) {
            return Err(format!("a page of {whole} bytes").into());
        }
        content = zstd::bulk::decompress(body, whole)?;
        &content
    } else {
        body
    });
    match header.number(1)? {
        2 => {
            let about = header.find(7).ok_or("a dictionary has no header")?;
            let count = usize::try_from(about.number(1)?)?;
            // Plain, or by the old name of that in a dictionary.
            if !matches!(about.number(2)?, 0 | 2) {
                return Err("a dictionary is encoded in an unknown way".into());
            }
            *dictionary = Column::default();
            // A part of what the page has, whatever it says.
            let mut budget = AllocationBudget(body.0.len() as u64);
            plain(&mut body, chunk.kind, count, dictionary, &mut budget)
        }
        0 => {
            let about = header.find(5).ok_or("a page has no header")?;
            let count = usize::try_from(about.number(1)?)?;
            let left = chunk.values.saturating_sub(column.definition.len() as u64);
            if count == 0 || count as u64 > left {
                return Err("a page has another number of values than its column".into());
            }
            let (most, repeated) = chunk.levels;
            for (number, most) in [(4, repeated), (3, most)] {
                if most > 0 {
                    // RLE.
                    if about.number(number)? != 3 {
                        return Err("levels are encoded in an unknown way".into());
                    }
                    let length = usize::try_from(u32::from_le_bytes(*body.chunk()?))?;
                    let mut levels = Bytes(body.take(length)?);
                    let into =
                        if number == 4 { &mut column.repetition } else { &mut column.definition };
                    levels.hybrid(
                        u8::BITS.saturating_sub(most.leading_zeros()),
                        count,
                        |level| {
                            let level = u8::try_from(level).ok().filter(|level| *level <= most);
                            into.push(level.ok_or("a level is too high")?);
                            Ok(())
                        },
                    )?;
                }
            }
            let levels = column.definition.iter().rev().take(count);
            let present = levels.filter(|level| **level == most).count();
            match about.number(2)? {
                0 => plain(&mut body, chunk.kind, present, column, budget),
                2 | 8 => {
                    let [width] = *body.chunk()?;
                    by_dictionary(&mut body, width, present, dictionary, chunk.kind, column, budget)
                }
                5 if chunk.kind == Kind::Number => body.differences(present, &mut column.numbers),
                other => Err(format!("values are encoded in the unknown way {other}").into()),
            }
        }
        other => Err(format!("a page of the unknown kind {other}").into()),
    }
}

fn plain(
    body: &mut Bytes<'_>,
    kind: Kind,
    count: usize,
    into: &mut Column,
    budget: &mut AllocationBudget,
) -> Outcome<()> {
    for _ in 0..count {
        if matches!(kind, Kind::Number | Kind::Real) {
            into.numbers.push(i64::from_le_bytes(*body.chunk()?));
        } else {
            let length = u32::from_le_bytes(*body.chunk()?);
            budget.take(length.into())?;
            let text = body.take(usize::try_from(length)?)?;
            into.texts.push(String::from_utf8_lossy(text).into_owned());
        }
    }
    Ok(())
}

fn by_dictionary(
    body: &mut Bytes<'_>,
    width: u8,
    count: usize,
    dictionary: &Column,
    kind: Kind,
    into: &mut Column,
    budget: &mut AllocationBudget,
) -> Outcome<()> {
    const OUTSIDE: &str = "a value is not in the dictionary";
    body.hybrid(width.into(), count, |index| {
        let index = usize::try_from(index)?;
        if matches!(kind, Kind::Number | Kind::Real) {
            into.numbers.push(*dictionary.numbers.get(index).ok_or(OUTSIDE)?);
        } else {
            let text = dictionary.texts.get(index).ok_or(OUTSIDE)?;
            budget.take(text.len() as u64)?;
            into.texts.push(text.clone());
        }
        Ok(())
    })
}

/// A value of the compact protocol, as far as it is looked at.
#[derive(Debug)]
enum Value<'a> {
    Number(i64),
    Bytes(&'a [u8]),
    List(Vec<Value<'a>>),
    Struct(Vec<(i16, Value<'a>)>),
    /// True or false, and numbers that are not whole.
    Other,
}

impl<'a> Value<'a> {
    fn find(&self, number: i16) -> Option<&Self> {
        let Self::Struct(fields) = self else { return None };
        fields.iter().find(|field| field.0 == number).map(|field| &field.1)
    }

    /// A number that is not negative.
    fn whole(&self) -> Outcome<u64> {
        let Self::Number(value) = self else { return Err("a number is something else".into()) };
        u64::try_from(*value).map_err(|_| "a number is negative".into())
    }

    fn as_text(&self) -> Outcome<&'a str> {
        let Self::Bytes(bytes) = self else { return Err("a name is something else".into()) };
        Ok(std::str::from_utf8(bytes)?)
    }

    fn number(&self, number: i16) -> Outcome<u64> {
        self.find(number).ok_or("a number is missing")?.whole()
    }

    fn text(&self, number: i16) -> Outcome<&'a str> {
        self.find(number).ok_or("a name is missing")?.as_text()
    }

    fn list(&self, number: i16) -> Outcome<&[Self]> {
        match self.find(number) {
            Some(Self::List(values)) => Ok(values),
            _ => Err("a list is missing".into()),
        }
    }
}

/// Bytes, read from the front.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> Outcome<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(length).ok_or("it ends too early")?;
        self.0 = rest;
        Ok(head)
    }

    fn chunk<const N: usize>(&mut self) -> Outcome<&'a [u8; N]> {
        let (head, rest) = self.0.split_first_chunk().ok_or("it ends too early")?;
        self.0 = rest;
        Ok(head)
    }

    fn varint(&mut self) -> Outcome<u64> {
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let [byte] = *self.chunk()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("a number has no end".into())
    }

    fn zigzag(&mut self) -> Outcome<i64> {
        let value = self.varint()?;
        Ok((value >> 1).cast_signed() ^ (value & 1).cast_signed().wrapping_neg())
    }

    /// A value of Thrift's type `kind`, in a structure `deep` more of which may be in each other.
    fn value(&mut self, kind: u8, deep: u32) -> Outcome<Value<'a>> {
        let deeper = deep.checked_sub(1).ok_or("it is nested too deep")?;
        Ok(match kind {
            1 | 2 => Value::Other,
            3 => Value::Number(i8::from_le_bytes(*self.chunk()?).into()),
            4..=6 => Value::Number(self.zigzag()?),
            7 => self.chunk::<8>().map(|_| Value::Other)?,
            8 => {
                let length = usize::try_from(self.varint()?)?;
                Value::Bytes(self.take(length)?)
            }
            9 | 10 => {
                let [head] = *self.chunk()?;
                let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                // Each takes a byte at least, those that are true or false too.
                if count > self.0.len() as u64 {
                    return Err("a list is longer than the file".into());
                }
                let element = |bytes: &mut Self| match head & 15 {
                    1 | 2 => bytes.take(1).map(|_| Value::Other),
                    kind => bytes.value(kind, deeper),
                };
                Value::List((0..count).map(|_| element(self)).collect::<Outcome<_>>()?)
            }
            12 => self.structure(deeper)?,
            other => return Err(format!("a value of the unknown type {other}").into()),
        })
    }

    fn structure(&mut self, deep: u32) -> Outcome<Value<'a>> {
        let mut fields = Vec::new();
        let mut number = 0_i16;
        loop {
            let [head] = *self.chunk()?;
            if head == 0 {
                return Ok(Value::Struct(fields));
            }
            number = match head >> 4 {
                0 => i16::try_from(self.zigzag()?)?,
                more => number.checked_add(more.into()).ok_or("a field has too high a number")?,
            };
            fields.push((number, self.value(head & 15, deep)?));
        }
    }

    /// Hands `count` values of `width` bits to `each`: runs of one value, and eights of values side by side.
    fn hybrid(
        &mut self,
        width: u32,
        count: usize,
        mut each: impl FnMut(u64) -> Outcome<()>,
    ) -> Outcome<()> {
        if width > u32::BITS {
            return Err("values are too wide".into());
        }
        let mut left = count;
        while left > 0 {
            let head = self.varint()?;
            let length = usize::try_from(head >> 1)?;
            let taken;
            if head & 1 == 0 {
                let value = self.take(width.div_ceil(8) as usize)?;
                let value = value.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
                taken = length.min(left);
                iter::repeat_n(value, taken).try_for_each(&mut each)?;
            } else {
                let size = length.checked_mul(width as usize).ok_or("it ends too early")?;
                let mut bits = Bits::new(self.take(size)?);
                taken = length.saturating_mul(8).min(left);
                for _ in 0..taken {
                    each(bits.take(width)?)?;
                }
            }
            if taken == 0 {
                return Err("a run of no values".into());
            }
            left = left.saturating_sub(taken);
        }
        Ok(())
    }

    /// `count` numbers, as differences from one to the next, less the smallest of its block.
    fn differences(&mut self, count: usize, into: &mut Vec<i64>) -> Outcome<()> {
        let (block, parts, total) = (self.varint()?, self.varint()?, self.varint()?);
        let mut value = self.zigzag()?;
        let each = block.checked_div(parts).filter(|each| (1..=1 << 16).contains(each));
        let each = usize::try_from(each.ok_or("a block of differences has no values")?)?;
        if total != count as u64 || parts > 1 << 10 {
            return Err("there are more or fewer differences than values".into());
        }
        if count == 0 {
            return Ok(());
        }
        into.push(value);
        let mut left = count.saturating_sub(1);
        while left > 0 {
            let smallest = self.zigzag()?;
            for width in self.take(usize::try_from(parts)?)? {
                if left == 0 {
                    break;
                }
                let width = u32::from(*width);
                let size = each.saturating_mul(width as usize).div_ceil(8);
                let mut bits = Bits::new(self.take(size)?);
                let taken = each.min(left);
                for _ in 0..taken {
                    let more = bits.take(width)?.cast_signed();
                    value = value.wrapping_add(smallest).wrapping_add(more);
                    into.push(value);
                }
                left = left.saturating_sub(taken);
            }
        }
        Ok(())
    }
}

/// Values side by side, the lowest bits first.
struct Bits<'a> {
    bytes: std::slice::Iter<'a, u8>,
    held: u128,
    count: u32,
}

impl<'a> Bits<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes: bytes.iter(), held: 0, count: 0 }
    }

    fn take(&mut self, width: u32) -> Outcome<u64> {
        if width > u64::BITS {
            return Err("values are too wide".into());
        }
        while self.count < width {
            self.held |= u128::from(*self.bytes.next().ok_or("it ends too early")?) << self.count;
            self.count = self.count.saturating_add(8);
        }
        let value = self.held & (1_u128 << width).wrapping_sub(1);
        self.held >>= width;
        self.count = self.count.saturating_sub(width);
        Ok(value as u64)
    }
}
