//! `xmalloc`: every block is freed by another thread than the one that allocated it.
//!
//! Producers fill batches of 4,096 blocks of 64 bytes and push them into a bounded queue;
//! consumers pop and free them. (Lever and Boreham, "malloc() performance in a multithreaded
//! Linux environment", 2000.)
//!
//! Check: each batch arrives with the serial number written into its blocks, and as many batches
//! are freed as were made.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Instant;

use crate::program::{Outcome, Params, Report};
use crate::threads;

const BATCH: usize = 4_096;
const SIZE: usize = 64;
/// Batches that may wait in the queue.
const WAITING: usize = 16;

type Block = Box<[u64; SIZE / 8]>;

#[derive(Default)]
struct Queue {
    batches: VecDeque<(u64, Vec<Block>)>,
    producers: usize,
}

struct Channel {
    queue: Mutex<Queue>,
    room: Condvar,
    work: Condvar,
}

impl Channel {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no holder of the lock panics")
    }

    fn push(&self, serial: u64, batch: Vec<Block>) {
        let mut queue = self
            .room
            .wait_while(self.lock(), |queue| queue.batches.len() >= WAITING)
            .expect("no holder of the lock panics");
        queue.batches.push_back((serial, batch));
        self.work.notify_one();
    }

    fn pop(&self) -> Option<(u64, Vec<Block>)> {
        let mut queue = self
            .work
            .wait_while(self.lock(), |queue| queue.batches.is_empty() && queue.producers > 0)
            .expect("no holder of the lock panics");
        let batch = queue.batches.pop_front();
        self.room.notify_one();
        batch
    }

    fn leave(&self) {
        self.lock().producers -= 1;
        self.work.notify_all();
    }
}

/// Makes batches until the deadline; returns how many.
fn produce(channel: &Channel, deadline: Instant, first: u64) -> u64 {
    let mut made = 0;
    while Instant::now() < deadline {
        let serial = first + made;
        let batch = (0..BATCH).map(|_| Box::new([serial; SIZE / 8])).collect();
        channel.push(serial, batch);
        made += 1;
    }
    channel.leave();
    made
}

/// Frees batches until there are no more; returns how many, and how many blocks were wrong.
fn consume(channel: &Channel) -> (u64, u64) {
    let (mut freed, mut damaged) = (0, 0);
    while let Some((serial, batch)) = channel.pop() {
        for block in batch {
            if block[0] != serial || block[SIZE / 8 - 1] != serial {
                damaged += 1;
            }
        }
        freed += 1;
    }
    (freed, damaged)
}

pub(super) fn run(params: &Params) -> Outcome {
    let channel = Channel {
        queue: Mutex::new(Queue { batches: VecDeque::new(), producers: params.threads }),
        room: Condvar::new(),
        work: Condvar::new(),
    };
    let started = Instant::now();
    let deadline = started + params.time;
    let (made, freed, damaged) = thread::scope(|scope| {
        let channel = &channel;
        let consumers: Vec<_> =
            (0..params.threads).map(|_| threads::spawn(scope, move || consume(channel))).collect();
        let producers: Vec<_> = (0..params.threads as u64)
            .map(|number| threads::spawn(scope, move || produce(channel, deadline, number << 40)))
            .collect();
        let made: u64 =
            producers.into_iter().map(|one| one.join().expect("a producer does not panic")).sum();
        let (freed, damaged) = consumers
            .into_iter()
            .map(|one| one.join().expect("a consumer does not panic"))
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        (made, freed, damaged)
    });
    let seconds = started.elapsed().as_secs_f64();
    if made != freed || damaged > 0 {
        return Err(format!(
            "{made} batches made, {freed} freed, {damaged} blocks with wrong contents"
        )
        .into());
    }
    Ok(Report {
        operations: 2 * made * BATCH as u64,
        seconds,
        metrics: vec![("batches", made as f64)],
        check: "every batch made was freed with its contents intact".to_owned(),
    })
}
