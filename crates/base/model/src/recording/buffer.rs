//! Rows of one dataset on their way to a part and back: what lets the writer and the reader treat all
//! datasets alike.

use std::collections::VecDeque;
use std::fmt;

use crate::dataset;
#[cfg(test)]
use crate::dataset::Column;
use crate::error::{Error, Kind, Result};
use crate::event::{Event, MadeOfRow, Recorded, of_each_kind};
use crate::units::Nanos;

/// Rows of one dataset, oldest first.
pub(crate) trait Buffer: fmt::Debug + Send {
    /// The dataset.
    fn dataset(&self) -> &'static str;
    /// Its columns.
    #[cfg(test)]
    fn columns(&self) -> &'static [Column];
    /// Takes in the event if it belongs here, and says whether it does.
    fn push(&mut self, event: &Event) -> bool;
    /// The oldest row as an event.
    fn pop(&mut self) -> Option<Event>;
    /// When the oldest row happened.
    fn first(&self) -> Option<Nanos>;
    /// How many rows there are.
    fn len(&self) -> usize;
    /// Bytes of text and numbers in lists of the rows that were pushed.
    fn length(&self) -> usize;
    /// All rows as the bytes of a part; none are left.
    fn encode(&mut self) -> Result<Vec<u8>>;
    /// Room for rows of the same dataset.
    fn empty(&self) -> Box<dyn Buffer>;
    /// Adds the rows of a part. The error says what is wrong with it.
    fn decode(&mut self, bytes: &[u8]) -> std::result::Result<(), String>;
}

/// Room for the rows of each dataset, in the order of the kinds.
pub(crate) fn buffers() -> Vec<Box<dyn Buffer>> {
    of_each_kind::<Room>()
}

/// An empty buffer of each type of row.
struct Room;

impl MadeOfRow for Room {
    type Made = Box<dyn Buffer>;

    fn made<R: Recorded + Clone + fmt::Debug + Send + 'static>() -> Self::Made {
        Box::new(Rows::<R>::default())
    }
}

/// The rows themselves, and the length of those that were pushed.
#[derive(Debug)]
struct Rows<R>(VecDeque<R>, usize);

impl<R> Default for Rows<R> {
    fn default() -> Self {
        Self(VecDeque::new(), 0)
    }
}

impl<R: Recorded + Clone + fmt::Debug + Send + 'static> Buffer for Rows<R> {
    fn dataset(&self) -> &'static str {
        R::DATASET
    }

    #[cfg(test)]
    fn columns(&self) -> &'static [Column] {
        R::COLUMNS
    }

    fn push(&mut self, event: &Event) -> bool {
        let Some(row) = R::of(event) else { return false };
        self.1 += row.length();
        // Recorders of one dataset may be some milliseconds behind each other.
        if self.0.back().is_some_and(|last| last.time() > row.time()) {
            let at = self.0.partition_point(|other| other.time() <= row.time());
            self.0.insert(at, row.clone());
        } else {
            self.0.push_back(row.clone());
        }
        true
    }

    fn pop(&mut self) -> Option<Event> {
        self.0.pop_front().map(R::into_event)
    }

    fn first(&self) -> Option<Nanos> {
        self.0.front().map(R::time)
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn length(&self) -> usize {
        self.1
    }

    fn encode(&mut self) -> Result<Vec<u8>> {
        let bytes = dataset::encode(self.0.make_contiguous()).map_err(|error| {
            Error::new(Kind::Damaged, format_args!("cannot encode rows: {error}"))
        })?;
        self.0.clear();
        self.1 = 0;
        Ok(bytes)
    }

    fn empty(&self) -> Box<dyn Buffer> {
        Box::new(Self::default())
    }

    fn decode(&mut self, bytes: &[u8]) -> std::result::Result<(), String> {
        self.0.extend(dataset::decode_possible::<R>(bytes).map_err(|error| error.to_string())?);
        Ok(())
    }
}
