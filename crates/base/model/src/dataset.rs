//! How rows become Parquet and back.
//!
//! A *row* type lists its columns once, with the [`row!`] macro: field, column name, meaning. Four
//! shapes of column are enough: a number (`INT64`; signed, because SQL subtracts), a list of
//! numbers (`LIST` of `INT64`), a number that need not be whole (`DOUBLE`) and text (`BYTE_ARRAY`,
//! UTF-8). All but the stamp may be absent.
//!
//! ```text
//!   optional number   value, or definition level 0
//!   list              level 0 = absent, 1 = empty, 2 = an entry; repetition level 0 starts a row
//! ```
//!
//! Always true: decoding what was encoded gives equal rows; a column that the file lacks is absent
//! in every row, and a column that only the file has is passed over. Written by the `parquet` crate, and read by
//! [`crate::parquet_columns`], for the crate panics on some bytes
//! (`docs/decisions/2026-11-23-parquet-read-by-ourselves.md`).

use std::marker::PhantomData;
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::basic::{ConvertedType, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, Type, TypePtr};

pub use crate::parquet_columns::Outcome;
use crate::parquet_columns::{self, File, Kind};
use crate::units::{Bytes, Nanos};

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One number.
    Number,
    /// A list of numbers.
    Numbers,
    /// One number that need not be whole.
    Real,
    /// Text.
    Text,
}

impl Shape {
    /// Its type in SQL.
    pub fn sql(self) -> &'static str {
        match self {
            Self::Number => "BIGINT",
            Self::Numbers => "BIGINT[]",
            Self::Real => "DOUBLE",
            Self::Text => "VARCHAR",
        }
    }
}

/// A column of a dataset.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Name in the file.
    pub name: &'static str,
    /// What it holds.
    pub shape: Shape,
    /// Meaning and unit.
    pub meaning: &'static str,
}

/// One value of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Not measured.
    Absent,
    /// One number.
    Number(u64),
    /// A list of numbers.
    Numbers(Vec<u64>),
    /// One number that need not be whole.
    Real(f64),
    /// Text.
    Text(String),
}

/// A type whose values fill a column.
pub trait Field: Sized {
    /// What its column holds.
    const SHAPE: Shape;
    /// The value as a cell.
    fn to_cell(&self) -> Cell;
    /// The value of a cell; `None` if the cell has another shape or lacks what must be there.
    fn from_cell(cell: Cell) -> Option<Self>;
    /// How many bytes of text or numbers of a list it is.
    fn length(&self) -> usize {
        0
    }
}

/// A type whose values are the rows of a dataset.
pub trait Row: Default {
    /// Name of the dataset: its directory in a recording.
    const DATASET: &'static str;
    /// The columns, in file order.
    const COLUMNS: &'static [Column];
    /// The row's cell in a column of [`Row::COLUMNS`], by its number.
    fn cell(&self, column: usize) -> Cell;
    /// Puts a cell into the row; whether it fits its column.
    fn set(&mut self, column: usize, cell: Cell) -> bool;
    /// Bytes of text and numbers in lists of all cells.
    fn length(&self) -> usize;
    /// The row's cells, in the order of [`Row::COLUMNS`].
    fn cells(&self) -> Vec<Cell> {
        (0..Self::COLUMNS.len()).map(|column| self.cell(column)).collect()
    }
}

impl Field for Nanos {
    const SHAPE: Shape = Shape::Number;
    fn to_cell(&self) -> Cell {
        Cell::Number(self.0)
    }
    fn from_cell(cell: Cell) -> Option<Self> {
        match cell {
            Cell::Number(value) => Some(Self(value)),
            _ => None,
        }
    }
}

macro_rules! optional_field {
    ($type:ty, $shape:ident, $value:ident => $to:expr, $from:expr $(, $length:expr)?) => {
        impl Field for Option<$type> {
            const SHAPE: Shape = Shape::$shape;
            fn to_cell(&self) -> Cell {
                self.as_ref().map_or(Cell::Absent, |$value| Cell::$shape($to))
            }
            fn from_cell(cell: Cell) -> Option<Self> {
                match cell {
                    Cell::Absent => Some(None),
                    Cell::$shape(value) => Some(Some($from(value))),
                    _ => None,
                }
            }
            $(fn length(&self) -> usize {
                self.as_ref().map_or(0, $length)
            })?
        }
    };
}

optional_field!(u64, Number, value => *value, std::convert::identity);
optional_field!(f64, Real, value => *value, std::convert::identity);
optional_field!(Bytes, Number, value => value.0, Bytes);
optional_field!(Nanos, Number, value => value.0, Nanos);
optional_field!(Vec<u64>, Numbers, value => value.clone(), std::convert::identity, Vec::len);
optional_field!(String, Text, value => value.clone(), std::convert::identity, String::len);

/// Defines a row type: each field with its meaning, its type and the name of its column.
macro_rules! row {
    (
        $(#[doc = $about:literal])*
        pub struct $row:ident in $dataset:literal {
            $($(#[doc = $meaning:literal])+ $field:ident: $type:ty = $column:literal,)*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $row {
            $($(#[doc = $meaning])+ pub $field: $type,)*
        }

        impl $crate::dataset::Row for $row {
            const DATASET: &'static str = $dataset;
            const COLUMNS: &'static [$crate::dataset::Column] = &[
                $($crate::dataset::Column {
                    name: $column,
                    shape: <$type as $crate::dataset::Field>::SHAPE,
                    meaning: concat!($($meaning),+),
                },)*
            ];
            fn cell(&self, column: usize) -> $crate::dataset::Cell {
                let mut fields = 0..;
                $(if fields.next() == Some(column) {
                    return $crate::dataset::Field::to_cell(&self.$field);
                })*
                $crate::dataset::Cell::Absent
            }
            fn length(&self) -> usize {
                0 $(+ $crate::dataset::Field::length(&self.$field))*
            }
            fn set(&mut self, column: usize, cell: $crate::dataset::Cell) -> bool {
                let mut fields = 0..;
                $(if fields.next() == Some(column) {
                    let value = $crate::dataset::Field::from_cell(cell);
                    return value.map(|value| self.$field = value).is_some();
                })*
                false
            }
        }
    };
}
pub(crate) use row;

/// Columns of numbers that differ little from row to row and seldom repeat: their differences are stored.
const DIFFERENCES: [&str; 2] = ["time_ns", "address"];

/// The column that every row of every dataset of a recording has.
const STAMP: &str = "time_ns";

/// Rows as the bytes of one Parquet file.
pub(crate) fn encode<R: Row>(rows: &[R]) -> Outcome<Vec<u8>> {
    let mut file = FileWriter::create(Vec::new())?;
    file.write(rows)?;
    file.finish()
}

/// One Parquet file of rows in the making, for tables that are no dataset of a recording.
pub struct FileWriter<W: std::io::Write + Send, R: Row>(SerializedFileWriter<W>, PhantomData<R>);

impl<W: std::io::Write + Send, R: Row> FileWriter<W, R> {
    /// A file that is written to `to`.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn create(to: W) -> Outcome<Self> {
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
            .set_created_by(crate::TOOL.to_owned());
        for name in DIFFERENCES {
            let path = ColumnPath::from(name);
            properties = properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
        }
        let schema = schema(R::DATASET, R::COLUMNS)?;
        Ok(Self(SerializedFileWriter::new(to, schema, Arc::new(properties.build()))?, PhantomData))
    }

    /// Adds rows, as a group that is read as one.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write(&mut self, rows: &[R]) -> Outcome<()> {
        write_group(&mut self.0, rows).map_err(plain)
    }

    /// Completes the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(self) -> Outcome<W> {
        self.0.into_inner().map_err(|error| plain(error.into()))
    }
}

/// What failed in writing, without the words around it.
fn plain(
    error: Box<dyn std::error::Error + Send + Sync>,
) -> Box<dyn std::error::Error + Send + Sync> {
    match error.downcast::<ParquetError>().map(|error| *error) {
        Ok(ParquetError::External(cause)) => cause,
        Ok(error) => error.into(),
        Err(error) => error,
    }
}

fn write_group<W: std::io::Write + Send, R: Row>(
    writer: &mut SerializedFileWriter<W>,
    rows: &[R],
) -> Outcome<()> {
    // Row by row, for rows are larger than what their columns need of them: each is looked at once.
    let mut columns: Vec<Cells> = R::COLUMNS.iter().map(|_| Cells::default()).collect();
    for row in rows {
        for (index, cells) in columns.iter_mut().enumerate() {
            cells.push(row.cell(index));
        }
    }
    let mut group = writer.next_row_group()?;
    for (column, cells) in R::COLUMNS.iter().zip(columns) {
        let Some(mut into) = group.next_column()? else { return Err("a column is missing".into()) };
        let Cells { levels, numbers, reals, texts } = cells;
        let definition = Some(levels.definition.as_slice());
        let repetition = (column.shape == Shape::Numbers).then_some(levels.repetition.as_slice());
        match column.shape {
            Shape::Text => into.typed::<ByteArrayType>().write_batch(&texts, definition, None)?,
            Shape::Real => into.typed::<DoubleType>().write_batch(&reals, definition, None)?,
            Shape::Number | Shape::Numbers => {
                into.typed::<Int64Type>().write_batch(&numbers, definition, repetition)?
            }
        };
        into.close()?;
    }
    group.close()?;
    Ok(())
}

/// A column on its way into a file.
#[derive(Default)]
struct Cells {
    levels: Levels,
    numbers: Vec<i64>,
    reals: Vec<f64>,
    texts: Vec<ByteArray>,
}

impl Cells {
    fn push(&mut self, cell: Cell) {
        // More than 2^63 of anything does not occur; saturate rather than wrap.
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        match cell {
            Cell::Absent => self.levels.push(0, 0),
            Cell::Number(value) => {
                self.levels.push(1, 0);
                self.numbers.push(signed(value));
            }
            Cell::Real(value) => {
                self.levels.push(1, 0);
                self.reals.push(value);
            }
            Cell::Text(value) => {
                self.levels.push(1, 0);
                self.texts.push(ByteArray::from(value.as_str()));
            }
            Cell::Numbers(values) => {
                if values.is_empty() {
                    self.levels.push(1, 0);
                }
                for (at, value) in values.into_iter().enumerate() {
                    self.levels.push(2, i16::from(at > 0));
                    self.numbers.push(signed(value));
                }
            }
        }
    }
}

#[derive(Default)]
struct Levels {
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

impl Levels {
    fn push(&mut self, definition: i16, repetition: i16) {
        self.definition.push(definition);
        self.repetition.push(repetition);
    }
}

fn schema(name: &str, columns: &[Column]) -> Outcome<TypePtr> {
    let fields = columns.iter().map(|column| {
        let number = |name, repetition| {
            Type::primitive_type_builder(name, Physical::INT64).with_repetition(repetition).build()
        };
        Ok(Arc::new(match column.shape {
            Shape::Number => number(column.name, Repetition::OPTIONAL)?,
            Shape::Real => Type::primitive_type_builder(column.name, Physical::DOUBLE)
                .with_repetition(Repetition::OPTIONAL)
                .build()?,
            Shape::Text => Type::primitive_type_builder(column.name, Physical::BYTE_ARRAY)
                .with_repetition(Repetition::OPTIONAL)
                .with_logical_type(Some(LogicalType::String))
                .with_converted_type(ConvertedType::UTF8)
                .build()?,
            Shape::Numbers => {
                let element = Arc::new(number("element", Repetition::REQUIRED)?);
                let list = Type::group_type_builder("list")
                    .with_repetition(Repetition::REPEATED)
                    .with_fields(vec![element])
                    .build()?;
                Type::group_type_builder(column.name)
                    .with_repetition(Repetition::OPTIONAL)
                    .with_logical_type(Some(LogicalType::List))
                    .with_converted_type(ConvertedType::LIST)
                    .with_fields(vec![Arc::new(list)])
                    .build()?
            }
        }))
    });
    let fields = fields.collect::<Outcome<Vec<_>>>()?;
    Ok(Arc::new(Type::group_type_builder(name).with_fields(fields).build()?))
}

/// The rows in the bytes of a Parquet file, which anybody may have made.
///
/// # Errors
/// What is wrong with the first of them that is none.
pub fn decode<R: Row>(bytes: &[u8]) -> Outcome<Vec<R>> {
    read(bytes, |_, _| Ok(()))
}

/// The same of a part of a recording, whose numbers are of a machine.
pub(crate) fn decode_possible<R: Row>(bytes: &[u8]) -> Outcome<Vec<R>> {
    read(bytes, possible)
}

fn read<R: Row>(bytes: &[u8], check: impl Fn(&Column, &[i64]) -> Outcome<()>) -> Outcome<Vec<R>> {
    let file = File::open(bytes)?;
    let mut budget = file.budget();
    let mut rows: Vec<R> = Vec::new();
    let stamped = R::COLUMNS.iter().any(|column| column.name == STAMP);
    for group in &file.groups {
        let mut columns = Vec::new();
        for (number, column) in R::COLUMNS.iter().enumerate() {
            let kind = match column.shape {
                Shape::Text => Kind::Text,
                Shape::Real => Kind::Real,
                Shape::Number | Shape::Numbers => Kind::Number,
            };
            let wanted = (column.name, kind, column.shape == Shape::Numbers);
            // One that the file lacks stays as a row begins.
            if let Some(read) = file.column(group, wanted, &mut budget)? {
                check(column, &read.numbers)?;
                columns.push((number, Stored::new(read, column)));
            }
        }
        if group.rows > 0
            && stamped
            && !columns.iter().any(|(number, _)| R::COLUMNS[*number].name == STAMP)
        {
            return Err("row 0 is not whole".into());
        }
        rows.reserve(group.rows);
        for at in 0..group.rows {
            let mut row = R::default();
            for (number, stored) in &mut columns {
                let cell = stored.next()?.ok_or("a column is too short")?;
                if !row.set(*number, cell) {
                    return Err(format!("row {at} is not whole").into());
                }
            }
            rows.push(row);
        }
        for (number, stored) in &mut columns {
            if stored.next()?.is_some() {
                return Err(format!("column {} is too long", R::COLUMNS[*number].name).into());
            }
        }
    }
    Ok(rows)
}

/// Whether numbers of a column can be of a machine: no program has more memory than page tables of five levels map, and
/// none does a thing a nanosecond for as long as a hundred days, or waits for one for years. What says more was made up
/// or is damaged, and nothing that is worked out from it would mean anything.
fn possible(column: &Column, numbers: &[i64]) -> Outcome<()> {
    let (most, what) = match column.name {
        _ if column.shape == Shape::Real => return Ok(()),
        "count" | "counts" | "kept_pages" => (1 << 53, "more than any machine counts"),
        "pages" | "written_pages" => (1 << 45, "more pages than there are addresses"),
        "latency_ns"
        | "after_allocation_ns"
        | "compaction_ns"
        | "reclaim_ns"
        | "locks_ns"
        | "waited_ns"
        | "took_ns" => (1 << 56, "longer than two years"),
        name if name.ends_with("_bytes") => (1 << 57, "more than any machine has"),
        STAMP => (1 << 62, "later than any clock shows"),
        _ => return Ok(()),
    };
    match numbers.iter().find(|number| **number > most) {
        Some(number) => {
            Err(format!("{} is {number} somewhere, {what}: it was made up", column.name).into())
        }
        None => Ok(()),
    }
}

/// A column of a file, cell by cell.
struct Stored {
    name: &'static str,
    shape: Shape,
    definition: std::vec::IntoIter<u8>,
    repetition: std::iter::Peekable<std::vec::IntoIter<u8>>,
    numbers: std::vec::IntoIter<i64>,
    texts: std::vec::IntoIter<String>,
}

impl Stored {
    fn new(read: parquet_columns::Column, column: &Column) -> Self {
        Self {
            name: column.name,
            shape: column.shape,
            definition: read.definition.into_iter(),
            repetition: read.repetition.into_iter().peekable(),
            numbers: read.numbers.into_iter(),
            texts: read.texts.into_iter(),
        }
    }

    fn number(&mut self) -> Outcome<u64> {
        let value = self.numbers.next().ok_or("a value is missing")?;
        u64::try_from(value).map_err(|_| format!("{} is negative", self.name).into())
    }

    /// The next row's cell; `None` after the last.
    fn next(&mut self) -> Outcome<Option<Cell>> {
        let Some(definition) = self.definition.next() else { return Ok(None) };
        if self.shape != Shape::Numbers {
            return Ok(Some(match (definition, self.shape) {
                (0, _) => Cell::Absent,
                (_, Shape::Text) => Cell::Text(self.texts.next().ok_or("a value is missing")?),
                (_, Shape::Real) => {
                    let bits = self.numbers.next().ok_or("a value is missing")?;
                    Cell::Real(f64::from_bits(bits.cast_unsigned()))
                }
                _ => Cell::Number(self.number()?),
            }));
        }
        if self.repetition.next() != Some(0) {
            return Err(format!("{} goes on with no start", self.name).into());
        }
        if definition < 2 {
            return Ok(Some(if definition == 0 {
                Cell::Absent
            } else {
                Cell::Numbers(Vec::new())
            }));
        }
        let mut list = vec![self.number()?];
        while self.repetition.next_if(|level| *level != 0).is_some() {
            if self.definition.next() != Some(2) {
                return Err(format!("{} has no entry where one follows", self.name).into());
            }
            list.push(self.number()?);
        }
        Ok(Some(Cell::Numbers(list)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::HeapSample;
    use crate::recording::buffers;

    pub(crate) fn samples() -> impl Strategy<Value = Vec<HeapSample>> {
        let small = || prop::option::of(0..=1u64 << 57);
        let list = prop::option::of(prop::collection::vec(0..1u64 << 40, 0..5));
        let row = (0..1u64 << 62, small(), small(), list, prop::option::of("[a-zé]{0,6}"));
        prop::collection::vec(
            row.prop_map(|(time, pss, live, pauses, backend)| HeapSample {
                time: Nanos(time),
                pss: pss.map(Bytes),
                live: live.map(Bytes),
                pauses,
                backend,
                ..HeapSample::default()
            }),
            1..40,
        )
    }

    #[test]
    fn a_column_that_the_file_lacks_is_absent_and_a_new_one_is_passed_over() {
        row! {
            /// The same dataset as another version writes it.
            pub struct Other in "heap" {
                /// When.
                time: Nanos = "time_ns",
                /// New.
                novelty: Option<u64> = "novelty",
            }
        }
        let rows = [Other { time: Nanos(3), novelty: Some(4) }];
        let read: Vec<HeapSample> = decode(&encode(&rows).unwrap()).unwrap();
        assert_eq!(read, [HeapSample { time: Nanos(3), ..HeapSample::default() }]);
    }

    #[test]
    fn a_row_without_its_stamp_is_refused() {
        row! {
            /// Not a heap sample.
            pub struct Stampless in "heap" {
                /// Some bytes.
                pss: Option<Bytes> = "pss_bytes",
            }
        }
        let bytes = encode(&[Stampless { pss: Some(Bytes(1)) }]).unwrap();
        let error = decode::<HeapSample>(&bytes).unwrap_err();
        assert_eq!(error.to_string(), "row 0 is not whole");
    }

    #[test]
    fn column_names_are_unique_and_carry_their_unit() {
        for dataset in buffers() {
            let mut names: Vec<_> = dataset.columns().iter().map(|column| column.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), dataset.columns().len(), "{}", dataset.dataset());
            for Column { name, meaning, .. } in dataset.columns() {
                assert!(!name.ends_with("_ns") || meaning.contains(" ns"), "{name}: {meaning}");
                assert!(!name.ends_with("_bytes") || meaning.contains("ytes"), "{name}: {meaning}");
            }
        }
    }

    /// Numbers from a seed.
    fn random(seed: u64) -> impl FnMut() -> u64 {
        let mut state = seed;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        }
    }

    fn varied(next: &mut impl FnMut() -> u64, count: u64) -> Vec<HeapSample> {
        let row = |i: u64| HeapSample {
            time: Nanos(i * 1000 + next() % 100),
            pss: Some(Bytes(next() >> (1 + next() % 60))),
            live: (!i.is_multiple_of(3)).then_some(Bytes(i)),
            pauses: (!i.is_multiple_of(4)).then(|| (0..i % 5).collect()),
            backend: (!i.is_multiple_of(2)).then(|| format!("b{}", i % 3)),
            ..HeapSample::default()
        };
        (0..count).map(row).collect()
    }

    #[test]
    fn groups_of_all_sizes_and_values_of_all_widths_are_read() {
        let mut next = random(1);
        for count in [0, 1, 2, 31, 32, 33, 127, 128, 129, 257, 20_000] {
            let rows = varied(&mut next, count);
            let mut file = FileWriter::create(Vec::new()).unwrap();
            let (first, second) = rows.split_at(rows.len() / 3);
            file.write(first).unwrap();
            file.write(second).unwrap();
            let bytes = file.finish().unwrap();
            assert!(decode::<HeapSample>(&bytes).unwrap() == rows, "{count} rows");
        }
    }

    /// Of 30,000 such files, the `parquet` crate (60.1) panicked at 239, in four places.
    #[test]
    fn whatever_is_flipped_cut_off_or_made_longer_is_rows_or_an_error() {
        let mut next = random(88_172_645_463_325_252);
        let rows = varied(&mut next, 60);
        let mut file = FileWriter::create(Vec::new()).unwrap();
        file.write(&rows[..30]).unwrap();
        file.write(&rows[30..]).unwrap();
        let whole = file.finish().unwrap();
        let cases = std::env::var("MUTATIONS").map_or(1_000, |cases| cases.parse().unwrap());
        let mut refused = 0;
        for _ in 0..cases {
            let mut bytes = whole.clone();
            for _ in 0..=next() % 3 {
                let length = bytes.len() as u64;
                // The footer is the smaller part, and that with the lengths.
                let from = if next().is_multiple_of(2) { length / 2 } else { 0 };
                let at = (from + next() % (length - from)) as usize;
                match next() % 6 {
                    0 => bytes[at] = next() as u8,
                    1 => bytes[at] ^= 1 << (next() % 8),
                    2 => bytes[at] = bytes[at].wrapping_add(1),
                    3 => bytes[at] = [0, 0xff, 0x7f, 0x80][(next() % 4) as usize],
                    4 if next().is_multiple_of(8) => bytes.truncate(at.max(16)),
                    _ => drop(bytes.splice(at..at, [0xff; 3])),
                }
            }
            refused += u64::from(decode::<HeapSample>(&bytes).is_err());
        }
        assert!(refused > cases / 2, "{refused} of {cases}");
    }

    /// A few bytes may say that they hold any number of rows: of one file, and group by group.
    #[test]
    fn a_file_of_more_rows_than_bytes_is_refused() {
        let rows = vec![HeapSample { time: Nanos(5), ..HeapSample::default() }; 60_000];
        let mut file = FileWriter::create(Vec::new()).unwrap();
        file.write(&rows).unwrap();
        let bytes = file.finish().unwrap();
        assert_eq!(decode::<HeapSample>(&bytes).unwrap().len(), rows.len());
        let mut file = FileWriter::create(Vec::new()).unwrap();
        (0..2).for_each(|_| file.write(&rows).unwrap());
        let bytes = file.finish().unwrap();
        let error = decode::<HeapSample>(&bytes).unwrap_err().to_string();
        assert!(error.contains("120000 rows in"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn rows_survive_the_file(rows in samples()) {
            let read: Vec<HeapSample> = decode(&encode(&rows).unwrap()).unwrap();
            prop_assert_eq!(read, rows);
        }

        #[test]
        fn arbitrary_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(decode::<HeapSample>(&bytes).is_err());
            // With the marks of the format at both ends, so that the footer is looked at.
            let mut marked = b"PAR1".to_vec();
            marked.extend(&bytes);
            marked.extend((bytes.len() as u32 / 2).to_le_bytes());
            marked.extend(b"PAR1");
            prop_assert!(decode::<HeapSample>(&marked).is_err());
        }
    }
}
