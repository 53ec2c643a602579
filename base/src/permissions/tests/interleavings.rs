//! Every order of fences, their ends and refills on two keys: a table never says what the records
//! do not say any more, and knows everything once nothing is open.

use super::*;

/// Events of a run, beside those that finish what is open.
const EVENTS_MAX: usize = 7;

#[derive(Clone)]
struct Run {
    table: PermissionTable,
    fences: Fences,
    /// For each key the values that tables may have: the last one is in the records.
    records: [Vec<u32>; 2],
    /// Changes that hold fences, their keys, and whether they have committed.
    changes: Vec<(FenceToken, Vec<usize>, bool)>,
    /// Questions, and the answer where the records were read.
    asked: Vec<(Question, Option<Published>)>,
    opened: usize,
    events: usize,
}

fn place(at: usize) -> DirId {
    DirId([3000, 4000][at])
}

fn value(key: DirId, value: u32) -> Published {
    Published::Listed(placed(key, private(value + 1), SearchClass::Nothing))
}

impl Run {
    fn new() -> Run {
        let at = |at: usize| {
            let Published::Listed(dir) = value(place(at), 0) else { unreachable!() };
            record(place(at), dir)
        };
        Run {
            table: built(&[at(0), at(1)]),
            fences: Fences::default(),
            records: [vec![0], vec![0]],
            changes: Vec::new(),
            asked: Vec::new(),
            opened: 0,
            events: 0,
        }
    }

    /// All that may happen next.
    fn next(&self) -> Vec<Run> {
        let mut next = Vec::new();
        let mut then = |change: &dyn Fn(&mut Run)| {
            let mut run = self.clone();
            run.events += 1;
            change(&mut run);
            run.check();
            next.push(run);
        };
        if self.opened < 3 {
            for keys in [&[0][..], &[1], &[0, 1]] {
                then(&|run| run.open(keys));
            }
            for key in [0, 1] {
                then(&|run| run.widen(key));
            }
        }
        for at in 0..self.changes.len() {
            if !self.changes[at].2 {
                then(&|run| run.commit(at));
            }
            then(&|run| run.end(at));
        }
        for at in 0..self.asked.len() {
            then(&|run| run.answer(at));
        }
        next
    }

    fn open(&mut self, keys: &[usize]) {
        self.opened += 1;
        let token = self.fences.open(keys.iter().map(|key| place(*key)).collect());
        keys.iter().for_each(|key| self.table.fence(place(*key)).unwrap());
        self.changes.push((token, keys.to_vec(), false));
    }

    fn commit(&mut self, at: usize) {
        for key in &self.changes[at].1 {
            let last = self.records[*key].last().unwrap() + 1;
            self.records[*key] = vec![last];
        }
        self.changes[at].2 = true;
    }

    /// After a commit, or without one.
    fn end(&mut self, at: usize) {
        let (token, ..) = self.changes.remove(at);
        self.asked.extend(self.fences.end(token).into_iter().map(|question| (question, None)));
    }

    /// A change that only gives: what tables had may still be said.
    fn widen(&mut self, key: usize) {
        self.opened += 1;
        let last = self.records[key].last().unwrap() + 1;
        self.records[key].push(last);
        self.asked.extend(self.fences.refill(place(key)).map(|question| (question, None)));
    }

    /// The records are read, and later the value is published.
    fn answer(&mut self, at: usize) {
        let question = self.asked[at].0;
        match self.asked[at].1.take() {
            None => {
                let key = usize::from(question.key == place(1));
                self.asked[at].1 = Some(value(question.key, *self.records[key].last().unwrap()));
            }
            Some(value) => {
                self.asked.remove(at);
                if self.fences.answered(question) {
                    self.table.publish(question.key, &value).unwrap();
                }
            }
        }
    }

    fn check(&self) {
        for (at, allowed) in self.records.iter().enumerate() {
            let entries = self.table.entries();
            let (_, said) = entries.iter().find(|(key, _)| *key == place(at)).unwrap();
            let allowed: Vec<_> = allowed.iter().map(|last| value(place(at), *last)).collect();
            assert!(said.as_ref().is_none_or(|said| allowed.contains(said)), "{said:?}");
        }
    }

    /// Everything ends and is answered; then each table knows what the records say.
    fn finish(mut self) {
        while !self.changes.is_empty() {
            self.end(0);
            self.check();
        }
        while !self.asked.is_empty() {
            self.answer(0);
            self.check();
        }
        assert_eq!((self.fences.tokens(), self.fences.open_keys().count()), (0, 0));
        for (at, record) in self.records.iter().enumerate() {
            let last = value(place(at), *record.last().unwrap());
            assert!(self.table.entries().contains(&(place(at), Some(last))));
        }
    }
}

#[test]
fn no_order_of_fences_and_refills_lets_an_old_value_be_said() {
    let (mut open, mut orders) = (vec![Run::new()], 0);
    while let Some(run) = open.pop() {
        if run.events < EVENTS_MAX {
            open.extend(run.next());
        }
        orders += 1;
        run.finish();
    }
    assert!(orders > 10_000, "{orders}");
}
