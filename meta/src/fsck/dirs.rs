//! Directories: content records, and the tree that their back pointers make.

use std::ops::ControlFlow;

use base::{DirId, Ino, SearchClass, ShardId, permissions::Listing};

use super::{
    fix::Fix,
    names::Namer,
    report::Report,
    sweep::{Sweep, Where},
};
use crate::record::{Access, Content, ContentState, EntryRecord, RenameList, key, key::Part};
use crate::{permissions, placing};

impl<'a> Sweep<'a> {
    /// Checks that the root exists.
    pub(super) fn root(&mut self) {
        let key = self.content_key(DirId::ROOT, DirId::ROOT);
        self.look_at(Some(Fix::Look(key.clone())));
        match self.get::<Content>(&key, || "the root's content record".into()) {
            Some(content) if content.ino == Ino::ROOT => {
                self.rooted.insert(DirId::ROOT);
            }
            Some(_) | None => self.find("the root directory is not there".into()),
        }
    }

    /// Checks a content record, or the extended attributes beside one.
    pub(super) fn directory(&mut self, shard: ShardId, key: &[u8], value: &[u8]) {
        let (Some(dir), Some((partition, part))) = (key::parse_dir(key), key::parse_share(key))
        else {
            return self.find(format!("shard {}: a directory's key is damaged", shard.0));
        };
        let what = |_: &Self| format!("directory {dir}");
        match part {
            0 => self.content(shard, (dir, partition), value),
            2 if partition == 0 => {
                if self.content != Some((dir, true)) {
                    self.find(format!("{}: extended attributes of nothing", what(self)));
                }
                self.xattrs(value, &what);
            }
            _ => self.find(format!("{}: a part of no known kind: part={part}", what(self))),
        }
    }

    fn content(&mut self, shard: ShardId, (dir, partition): (DirId, u16), value: &[u8]) {
        let damaged = || format!("the content record of directory {dir}");
        self.content = None;
        let Some(content) = self.decode::<Content>(value, damaged) else { return };
        if partition > 0 {
            self.share(shard, (dir, partition), &content);
            return self.counts_something(shard, dir, &content, &|_: &Self| {
                format!("partition {partition} of directory {dir}")
            });
        }
        Report::count(&self.report.directories);
        let spilled = content.xattrs.is_spilled();
        self.content = Some((dir, spilled));
        let what = |sweep: &Self| match &content.name {
            None => "/".to_owned(),
            Some(name) => {
                let parent = Where { id: content.parent, home: content.parent_home };
                sweep.path(parent, Some(name))
            }
        };
        if content.state != ContentState::Live {
            self.find(format!("{} is {:?}", what(self), content.state));
        }
        if self.config.placement().shard_of(content.home, 0) != shard {
            self.find(format!("{} is on the wrong shard: shard={}", what(self), shard.0));
        }
        self.use_ino(content.ino, &what);
        if spilled && !self.is_there(&key::content(shard, dir, 0, Part::Xattrs)) {
            self.find(format!("{}: its extended attributes are missing", what(self)));
        }
        self.charged_dir(&content, &what);
        self.counts_something(shard, dir, &content, &what);
        self.has_shares(dir, &content);
        if dir == DirId::ROOT {
            if content.name.is_some() || content.home != DirId::ROOT {
                self.find("the root directory has a name or a home".into());
            }
            let Listing { below, listed } = &content.listing.0;
            if !listed && *below != SearchClass::Nothing {
                self.find("the root directory has a bound, and is not listed".into());
            }
            return;
        }
        self.born(dir, &content, &what);
        self.entered(dir, &content, &what);
        self.listed(&content, &what);
        // On a cluster the path up leads over other servers.
        if !self.is_one_of_several() {
            self.reaches_root(dir, &content, &what);
        }
    }

    /// Checks that a directory without names counts none. Groups with names are compared with their
    /// counts elsewhere.
    fn counts_something(&self, shard: ShardId, dir: DirId, content: &Content, what: Namer<'_, 'a>) {
        let (entries, subdirs) = (content.entries, content.subdirs);
        if (entries, subdirs) != (0, 0) && !self.has_entries(shard, dir) {
            let line = format!("{} counts {entries} entries, but has none", what(self));
            let (entries, subdirs) = (0i64.saturating_sub_unsigned(entries), -i64::from(subdirs));
            let ino = content.ino;
            self.find_to_fix(line, Fix::Counts { shard, dir, ino, entries, subdirs });
        }
    }

    pub(super) fn is_there(&self, key: &[u8]) -> bool {
        matches!(self.snapshot.get(key), Ok(Some(_)))
    }

    fn has_entries(&self, shard: ShardId, dir: DirId) -> bool {
        let prefix = key::names(shard, dir);
        let mut found = false;
        let scanned = self.snapshot.scan(&prefix, &key::end_of(&prefix), &mut |key, _| {
            found = key::parse_name(key).is_some_and(|(_, _, part)| part == Part::Main as u8);
            if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        found || scanned.is_err()
    }

    /// Checks that the id is that of the birth triple, and that the birth place knows whether the
    /// directory left it.
    fn born(&self, dir: DirId, content: &Content, what: Namer<'_, 'a>) {
        let Content { birth_parent, birth_version, .. } = content;
        // A repair that could not find out the birth name leaves it open.
        let Some(birth_name) = &content.birth_name else { return };
        if self.config.hash_key.dir_id(*birth_parent, birth_name, *birth_version) != dir {
            self.find(format!("{} has an id that is not that of its birth: id={dir}", what(self)));
        }
        let placement = self.config.placement();
        let has_own = placing::has_own_home(placement, *birth_version);
        if has_own && content.home != placement.home_of(dir, *birth_version, dir) {
            self.find(format!(
                "{} has the home of another directory: home={}",
                what(self),
                content.home
            ));
        }
        let home = placing::birth_home(self.config, content);
        // The rename list is with the master, whichever partition has the name.
        let shard = placement.shard_of(home, 0);
        let key = self.name_key(shard, *birth_parent, birth_name, Part::RenameList);
        if self.is_elsewhere(&key) {
            return;
        }
        let list: Option<RenameList> =
            self.get(&key, || format!("the rename list of {}", what(self)));
        let listed = list.is_some_and(|list| list.versions.contains(birth_version));
        let elsewhere =
            content.parent != *birth_parent || content.name.as_ref() != Some(birth_name);
        if elsewhere && !listed {
            self.find(format!(
                "{} was moved and its birth place does not know: id={dir}",
                what(self)
            ));
        }
    }

    /// Checks that the entry which the back pointer names leads here, and repeats owner and mode.
    fn entered(&self, dir: DirId, content: &Content, what: Namer<'_, 'a>) {
        let Some(name) = &content.name else {
            return self.find(format!("directory {dir} has no name"));
        };
        let Some(shard) = self.shard_of_name(content.parent_home, content.parent, name) else {
            return;
        };
        let key = self.name_key(shard, content.parent, name, Part::Main);
        let entry: Option<EntryRecord> = self.get(&key, || what(self));
        let ino = content.ino;
        match entry {
            Some(EntryRecord::Dir(access)) if (access.id, access.ino) == (dir, ino) => {
                if access != Access::of(dir, content) {
                    self.find(format!("{}: its entry has another mode, owner or home", what(self)));
                }
            }
            Some(EntryRecord::Dir(_) | EntryRecord::Node(_) | EntryRecord::Link(_)) | None => {
                self.find(format!(
                    "{} is not there, but its contents are: id={dir} ino={ino}",
                    what(self)
                ));
            }
        }
    }

    /// Checks that permission tables, which leave an unlisted directory out, would be right about
    /// it.
    fn listed(&self, content: &Content, what: Namer<'_, 'a>) {
        if content.listing.0.listed {
            return;
        }
        let key = self.content_key(content.parent_home, content.parent);
        let parent: Option<Content> = match self.is_elsewhere(&key) {
            true => None,
            false => self.get(&key, || format!("the directory above {}", what(self))),
        };
        let bound = parent.as_ref().map(|parent| &parent.listing.0.below);
        if let Some(wrong) = permissions::wrong(content, bound) {
            self.find(format!("{} {wrong}", what(self)));
        }
    }

    /// Checks that the parent exists, and that walking up leads to the root. Directories that were
    /// walked once are not walked again.
    fn reaches_root(&mut self, dir: DirId, content: &Content, what: Namer<'_, 'a>) {
        let Some(parent) = self.above(content) else {
            return self
                .find(format!("{} is in a directory that is not there: id={dir}", what(self)));
        };
        let mut walked = vec![dir];
        let (mut above, mut at) = (content.parent, parent);
        while !self.rooted.contains(&above) {
            if walked.contains(&above) {
                return self.find(format!("{} is in a loop: id={dir}", what(self)));
            }
            walked.push(above);
            // A missing parent is reported for the directory in it.
            let Some(next) = self.above(&at) else { return };
            above = at.parent;
            at = next;
        }
        self.rooted.extend(walked);
    }

    /// The parent of a directory, by its back pointer.
    fn above(&self, content: &Content) -> Option<Content> {
        let key = self.content_key(content.parent_home, content.parent);
        let named = || format!("the content record of directory {}", content.parent);
        self.get(&key, named).filter(|parent: &Content| parent.ino == content.parent_ino)
    }
}
