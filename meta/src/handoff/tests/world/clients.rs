//! Clients, and what they must find.

use base::{Encode as _, Layout};
use bytes::Bytes;

use super::{
    super::disk::{Share, name_key, pos_of},
    Check, End, Flaw, NAMES, Run,
};

impl Run {
    /// A client makes, removes or looks up a name; it finds its way as clients do.
    pub(super) fn ask(&mut self) -> Check {
        self.asked += 1;
        let name = if self.seed == 0 { self.asked * 7 % NAMES } else { self.draw(NAMES) };
        let what = if self.seed == 0 { self.asked % 4 } else { self.draw(4) };
        let (pos, key) = (pos_of(name), name_key(name));
        for _ in 0..8 {
            let at = usize::from(self.client.partition(pos));
            let Some(share) = self.ends[at].share() else {
                // The partition was never there, or is not yet: the master knows.
                if at == 0 {
                    return Err("the master is not there".into());
                }
                let Some(master) = self.ends[0].share() else { return Err("no master".into()) };
                if master.layout.partition(pos) == self.ends[at].partition {
                    // The switch is prepared at that end, and the client waits.
                    return Ok(());
                }
                self.corrected(&master.layout, (pos, at))?;
                continue;
            };
            let forgotten = self.has(Flaw::ChangesForgotten);
            let end = &mut self.ends[at];
            if end.promise().is_some() {
                return Ok(());
            }
            if share.layout.partition(pos) != end.partition {
                self.corrected(&share.layout, (pos, at))?;
                continue;
            }
            let giving = end.giving.as_mut().filter(|giving| giving.moving.contains(pos));
            if what != 0 && giving.as_ref().is_some_and(|giving| giving.frozen) {
                return Ok(());
            }
            let found = end.disk.now.get(&key).cloned();
            let expected =
                self.expected.get(&name).map(|value| Bytes::from_static(value.as_bytes()));
            if found != expected {
                return Err(format!(
                    "name {name} is {found:?} at {at}, and should be {expected:?}"
                ));
            }
            let value = match (what, &found) {
                (0, _) => return Ok(()),
                (1, Some(_)) => None,
                (2, Some(_)) => Some("g"),
                (_, None) => Some(if name % 5 == 0 { "d" } else { "f" }),
                (_, Some(_)) => return Ok(()),
            };
            if let Some(changed) = giving.and_then(|giving| giving.changed.as_mut())
                && !(forgotten && self.asked.is_multiple_of(2))
            {
                changed.insert(key.clone());
            }
            let more = u64::from(found.is_none() && value.is_some());
            let less = u64::from(found.is_some() && value.is_none());
            let share = Share { entries: share.entries + more - less, ..share };
            let stored = value.map(|value| Bytes::from_static(value.as_bytes()));
            end.disk.write(vec![(key, stored), (b"D".to_vec(), Some(share.to_vec().into()))]);
            end.disk.sync();
            match value {
                Some(value) => drop(self.expected.insert(name, value)),
                None => drop(self.expected.remove(&name)),
            }
            return Ok(());
        }
        Err(format!("a client does not find name {name}"))
    }

    /// Partition `asked` does not own the position `pos`, and answers with the layout it knows. A
    /// client that would go there again knows a switch that a power cut has taken. It then believes
    /// the master, as `client::layouts` does.
    fn corrected(&mut self, news: &Layout, (pos, asked): (u64, usize)) -> Check {
        self.client.learn(news);
        if usize::from(self.client.partition(pos)) == asked {
            if !self.lost {
                return Err("a client that knows all is sent away".into());
            }
            self.client = self.ends[0].share().ok_or("no master")?.layout;
        }
        Ok(())
    }

    pub(super) fn check(&self) -> Check {
        let views: Vec<Layout> =
            self.ends.iter().filter_map(End::share).map(|share| share.layout).collect();
        for name in 0..NAMES {
            let owners: Vec<&End> = self.ends.iter().filter(|end| end.owns(pos_of(name))).collect();
            let [owner] = owners[..] else {
                return Err(format!("name {name} has {} owners: {views:?}", owners.len()));
            };
            let found = owner.disk.now.get(&name_key(name)).cloned();
            let expected =
                self.expected.get(&name).map(|value| Bytes::from_static(value.as_bytes()));
            if found != expected {
                return Err(format!("name {name} is {found:?}, and should be {expected:?}"));
            }
        }
        for end in &self.ends {
            let (names, share) = (end.disk.names().count() as u64, end.share());
            let counted = share.map_or(0, |share| share.entries);
            if names != counted {
                return Err(format!("partition {} counts {counted} of {names}", end.partition));
            }
        }
        if self.attempts > 40 {
            return Err(format!("{:?} took {} attempts", self.kind, self.attempts));
        }
        Ok(())
    }
}
