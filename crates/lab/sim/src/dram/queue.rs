//! The requests that wait in a channel, of one direction.

/// A request for one line.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The requester's name for it.
    pub id: u32,
    /// Bank, counted over ranks and groups.
    pub bank: u16,
    /// Row of the bank.
    pub row: u32,
    /// When it reached the channel.
    pub arrived: u64,
}

/// Whom a request waits for: its rank, its bank, its row. Equal keys want the same open row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key(u64);

impl Key {
    /// The key of no request: no rank has this number.
    pub(super) const NONE: Self = Self(u64::MAX);

    pub(super) const fn new(rank: u32, request: &Request) -> Self {
        Self((rank as u64) << 48 | (request.bank as u64) << 32 | request.row as u64)
    }

    pub(super) const fn rank(self) -> usize {
        (self.0 >> 48) as usize
    }

    pub(super) const fn bank(self) -> usize {
        (self.0 >> 32) as usize & 0xffff
    }
}

/// No entry of a queue.
pub(super) const NONE: u32 = u32::MAX;

/// A queued request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) key: Key,
    /// When its data could start at the earliest, bus apart, as far as is known: all that bounds it only ever moves on.
    pub(super) ready: u64,
    /// The last bits of when it reached the channel.
    pub(super) arrived: u32,
    pub(super) id: u32,
    /// Its neighbours by age, or [`NONE`].
    pub(super) older: u32,
    pub(super) younger: u32,
    /// Another one of its bank, or [`NONE`].
    pub(super) beside: u32,
}

/// Requests of one direction, linked by age and, without order, in each bank: taking one out moves no other.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) entries: Vec<Entry>,
    /// Places that are free, the first of a chain along `beside`.
    pub(super) unused: u32,
    pub(super) oldest: u32,
    pub(super) youngest: u32,
    pub(super) len: usize,
    pub(super) banks: Vec<u32>,
}

impl Queue {
    pub(super) fn new(banks: usize) -> Self {
        Self {
            entries: Vec::new(),
            unused: NONE,
            oldest: NONE,
            youngest: NONE,
            len: 0,
            banks: vec![NONE; banks],
        }
    }

    /// Puts a request last; returns its place.
    #[inline]
    pub(super) fn push(&mut self, key: Key, request: &Request) -> u32 {
        let beside = &mut self.banks[key.bank()];
        let new = Entry {
            key,
            ready: 0,
            arrived: request.arrived as u32,
            id: request.id,
            older: self.youngest,
            younger: NONE,
            beside: *beside,
        };
        let mut at = self.unused;
        if let Some(entry) = self.entries.get_mut(at as usize) {
            self.unused = entry.beside;
            *entry = new;
        } else {
            at = self.entries.len() as u32;
            self.entries.push(new);
        }
        match self.youngest {
            NONE => self.oldest = at,
            youngest => self.entries[youngest as usize].younger = at,
        }
        *beside = at;
        self.youngest = at;
        self.len += 1;
        at
    }

    /// Takes one out: its key, its name, and whether another one wants its row.
    #[inline]
    pub(super) fn take(&mut self, at: u32) -> (Key, u32, bool) {
        let Entry { key, id, older, younger, beside, .. } = self.entries[at as usize];
        match older {
            NONE => self.oldest = younger,
            older => self.entries[older as usize].younger = younger,
        }
        match younger {
            NONE => self.youngest = older,
            younger => self.entries[younger as usize].older = older,
        }
        self.entries[at as usize].beside = self.unused;
        self.unused = at;
        self.len -= 1;
        // Along the bank's, to the one before it and on to one of the same row.
        let (mut wanted, mut next) = (false, self.banks[key.bank()]);
        if next == at {
            self.banks[key.bank()] = beside;
        } else {
            while let Some(entry) = self.entries.get_mut(next as usize) {
                wanted |= entry.key == key;
                next = entry.beside;
                if next == at {
                    entry.beside = beside;
                    break;
                }
            }
        }
        next = beside;
        while !wanted && let Some(entry) = self.entries.get(next as usize) {
            wanted = entry.key == key;
            next = entry.beside;
        }
        (key, id, wanted)
    }
}
