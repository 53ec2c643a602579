//! Names: the record of each, and the number of names in a directory.

use base::{DirId, EntryName, NameVersion, ShardId};

use super::{
    fix::Fix,
    sweep::{Sweep, Where},
};
use crate::placing;
use crate::record::{
    Access, Content, EntryRecord, Inode, Key, Location, RenameList, Slot, key, key::Part,
    system::Origin,
};

/// The directory whose names are being read, and what was found so far.
pub(super) struct Group {
    dir: DirId,
    /// The partition that has the names, and its record.
    partition: u16,
    content: Option<Content>,
    shard: ShardId,
    entries: u64,
    subdirs: u32,
    /// The last name, and whether its extended attributes must come next.
    last: Option<(EntryName, bool)>,
}

impl Group {
    fn place(&self) -> Where {
        let home = self.content.as_ref().map_or(self.dir, |content| content.home);
        Where { id: self.dir, home }
    }
}

impl Sweep<'_> {
    /// The key of a directory's content record.
    pub(super) fn content_key(&self, home: DirId, dir: DirId) -> Key {
        key::content(self.config.placement().shard_of(home, 0), dir, 0, Part::Main)
    }

    /// The key of one part of a name on a shard.
    pub(super) fn name_key(&self, shard: ShardId, dir: DirId, name: &EntryName, part: Part) -> Key {
        key::name(shard, dir, self.config.hash_key.pos(name), name, part)
    }

    /// Checks one part of a name.
    pub(super) fn name(&mut self, shard: ShardId, key: &[u8], value: &[u8]) {
        let parsed = key::parse_dir(key).zip(key::parse_name(key));
        let Some((dir, (pos, name, part))) = parsed else {
            return self.find(format!("shard {}: a name's key is damaged", shard.0));
        };
        if self.group.as_ref().is_none_or(|group| (group.dir, group.shard) != (dir, shard)) {
            self.open_group(shard, dir);
        }
        let dir = self.group.as_ref().map_or(Where { id: dir, home: dir }, Group::place);
        let Ok(name) = EntryName::new(name) else {
            let shown = name.escape_ascii();
            return self.find(format!("{}: {shown} is no name", self.path(dir, None)));
        };
        let what = |sweep: &Self| sweep.path(dir, Some(&name));
        if pos != self.config.hash_key.pos(&name) {
            self.find(format!("{} is at the position of another name: pos={pos:x}", what(self)));
        }
        match part {
            0 => self.entry(shard, dir, &name, value),
            1 => self.rename_list(shard, dir, &name, value),
            2 => self.name_xattrs(dir, &name, value),
            3 => self.origin(shard, (dir, pos), &name, value),
            _ => self.find(format!("{}: a part of no known kind: part={part}", what(self))),
        }
    }

    /// Whether a handoff of a partition is not over: names may then be stored with a partition that
    /// does not own them.
    fn is_moving(&self, group: &Group) -> bool {
        let of = |partition| key::handoff(group.shard, group.dir, partition);
        if group.content.is_some() {
            return self.is_there(&of(group.partition));
        }
        // Whichever partition it is, its handoff is the only one of the directory here.
        let mut all = of(0);
        all.truncate(all.len() - size_of::<u16>());
        !self.stored(&all).is_empty()
    }

    fn open_group(&mut self, shard: ShardId, dir: DirId) {
        self.close_group();
        let (partition, content) = match self.share_at(shard, dir) {
            Some((partition, content)) => (partition, Some(content)),
            None => (0, None),
        };
        let (entries, subdirs, last) = (0, 0, None);
        self.group = Some(Group { dir, partition, content, shard, entries, subdirs, last });
    }

    /// Checks a directory of which all names were read.
    pub(super) fn close_group(&mut self) {
        self.close_name();
        let Some(group) = self.group.take() else { return };
        let Some(content) = &group.content else {
            if group.entries > 0 && !self.is_moving(&group) {
                let (dir, shard, entries) = (group.dir, group.shard.0, group.entries);
                let line = format!(
                    "directory {dir} has entries but is not there: shard={shard} entries={entries}"
                );
                self.find_to_fix(line, Fix::Group(group.shard, dir));
            }
            return;
        };
        let (entries, subdirs) = (content.entries, content.subdirs);
        if (entries, subdirs) != (group.entries, group.subdirs) {
            let (found, dirs, dir) = (group.entries, group.subdirs, self.path(group.place(), None));
            let line = format!(
                "{dir} counts {entries} entries and {subdirs} directories, but has {found} and {dirs}"
            );
            let (shard, dir, ino) = (group.shard, group.dir, content.ino);
            // Counts beyond all bounds are repaired in several steps.
            let entries =
                i64::try_from(i128::from(found) - i128::from(entries)).unwrap_or(i64::MIN);
            let subdirs = i64::from(dirs) - i64::from(subdirs);
            self.find_to_fix(line, Fix::Counts { shard, dir, ino, entries, subdirs });
        }
    }

    /// Checks a name of which all parts were read.
    fn close_name(&mut self) {
        let Some(group) = &mut self.group else { return };
        if let Some((name, true)) = group.last.take() {
            let dir = group.place();
            let shard = group.shard;
            let key = self.name_key(shard, dir.id, &name, Part::Main);
            let path = self.path(dir, Some(&name));
            self.find_to_fix(
                format!("{path}: its extended attributes are missing"),
                Fix::Look(key),
            );
        }
    }

    fn entry(&mut self, shard: ShardId, dir: Where, name: &EntryName, value: &[u8]) {
        self.close_name();
        let what = |sweep: &Self| sweep.path(dir, Some(name));
        let pos = self.config.hash_key.pos(name);
        let group = self.group.as_ref().expect("opened before its names are read");
        let has = |content: &Content| content.layout.partition(pos) == group.partition;
        if !group.content.as_ref().is_some_and(has) && self.is_moving(group) {
            // The name has come before its partition owns it, or it has gone and is not removed
            // yet.
            return;
        }
        let record = self.decode::<EntryRecord>(value, || what(self));
        let group = self.group.as_mut().expect("opened before its names are read");
        group.entries += 1;
        let partition = group.partition;
        let owner = group.content.as_ref().map(|content| content.layout.partition(pos));
        let quota = group.content.as_ref().map(|content| content.quota);
        let Some(record) = record else { return };
        if matches!(record, EntryRecord::Dir(_)) {
            group.subdirs += 1;
        }
        let spilled = matches!(&record, EntryRecord::Node(inode) if inode.xattrs.is_spilled());
        group.last = Some((name.clone(), spilled));
        if let Some(owner) = owner.filter(|owner| *owner != partition) {
            let here = format!("in partition {partition}");
            self.find(format!("{} stands {here}, but belongs to partition {owner}", what(self)));
        }
        match record {
            EntryRecord::Node(inode) => {
                if inode.nlink != 1 {
                    let nlink = inode.nlink;
                    self.find(format!("{} has one name but counts {nlink}", what(self)));
                }
                self.placed(
                    shard,
                    &inode,
                    Location { dir: dir.id, home: dir.home, name: name.clone() },
                );
                self.charged_entry(&inode, quota, &what);
                self.inode(&inode, &|sweep: &Self| sweep.path(dir, Some(name)));
            }
            EntryRecord::Dir(access) => self.access(dir, name, &access),
            EntryRecord::Link(ino) => {
                self.linked.entry(ino).or_default().found += 1;
                if self.is_elsewhere(&key::inode(ino, Part::Main)) {
                    return;
                }
                let slot =
                    self.get(&key::inode(ino, Part::Main), || format!("the slot of inode {ino}"));
                if !matches!(slot, Some(Slot::Inode(_))) {
                    self.find(format!(
                        "{} leads to inode {ino}, which is not in its slot",
                        what(self)
                    ));
                }
            }
        }
    }

    /// Checks that an embedded inode is where it was born, or that its shard of birth knows its
    /// place.
    fn placed(&self, shard: ShardId, inode: &Inode, here: Location) {
        let (ino, born) = (inode.ino, inode.ino.shard().0);
        let path = |at: &Location| self.path(Where { id: at.dir, home: at.home }, Some(&at.name));
        let what = || path(&here);
        if !inode.moved {
            if born != shard.0 {
                self.find(format!("{} was born on shard {born} and left no word there", what()));
            }
            return;
        }
        match self.get(&key::inode(ino, Part::Main), || format!("the slot of inode {ino}")) {
            Some(Slot::Moved(at)) if at == here => {}
            Some(Slot::Moved(at)) => {
                self.find(format!("{} is looked for at {}: inode {ino}", what(), path(&at)));
            }
            Some(Slot::Inode(_)) => {
                self.find(format!("{} is in its slot as well: inode {ino}", what()));
            }
            None => self.find(format!("{} was moved and left no word: inode {ino}", what())),
        }
    }

    /// Checks that a directory's entry leads to a content record that leads back to it.
    fn access(&self, dir: Where, name: &EntryName, access: &Access) {
        let what = || self.path(dir, Some(name));
        let key = self.content_key(access.home, access.id);
        if self.is_elsewhere(&key) {
            return;
        }
        let content: Option<Content> =
            self.get(&key, || format!("the content record of {}", what()));
        let Some(content) = content.filter(|content| content.ino == access.ino) else {
            return self.find(format!(
                "{} has no content record: id={} ino={}",
                what(),
                access.id,
                access.ino
            ));
        };
        if content.parent != dir.id || content.name.as_ref() != Some(name) {
            let parent = Where { id: content.parent, home: content.parent_home };
            let there = self.path(parent, content.name.as_ref());
            self.find(format!("{} is the directory that is at {there}", what()));
        }
    }

    /// Checks that each version in a rename list belongs to a living directory that was born under
    /// the name and is elsewhere.
    fn rename_list(&mut self, shard: ShardId, dir: Where, name: &EntryName, value: &[u8]) {
        let what = || format!("the rename list of {}", self.path(dir, Some(name)));
        let Some(list) = self.decode::<RenameList>(value, what) else { return };
        if self.group.as_ref().is_some_and(|group| group.partition > 0) {
            self.find(format!("{} is not where the master of its directory is", what()));
        }
        if list.versions.is_empty() {
            self.find(format!("{} is empty", what()));
        }
        for (index, version) in list.versions.iter().enumerate() {
            if list.versions[..index].contains(version) {
                self.find(format!("{} has version {version} twice", what()));
            }
            if !self.lives_elsewhere(shard, dir.id, name, *version) {
                self.find(format!("{} has version {version}, which lives nowhere else", what()));
            }
        }
    }

    fn lives_elsewhere(
        &self,
        shard: ShardId,
        dir: DirId,
        name: &EntryName,
        version: NameVersion,
    ) -> bool {
        let id = self.config.hash_key.dir_id(dir, name, version);
        let shard = placing::shard_of_born(self.config.placement(), shard, id, version);
        let key = key::content(shard, id, 0, Part::Main);
        if self.is_elsewhere(&key) {
            return true;
        }
        let content: Option<Content> =
            self.get(&key, || format!("the content record of directory {id}"));
        content.is_some_and(|content| {
            let born_here =
                content.birth_parent == dir && content.birth_name.as_ref() == Some(name);
            let is_here = content.parent == dir && content.name.as_ref() == Some(name);
            born_here && content.birth_version == version && !is_here
        })
    }

    /// Checks the origin of something in the trash.
    fn origin(&mut self, shard: ShardId, (dir, pos): (Where, u64), name: &EntryName, value: &[u8]) {
        let what = || format!("the origin of {}", self.path(dir, Some(name)));
        self.decode::<Origin>(value, what);
        if !self.is_there(&key::name(shard, dir.id, pos, name, Part::Main)) {
            self.find(format!("{} is that of nothing", what()));
        }
    }

    fn name_xattrs(&mut self, dir: Where, name: &EntryName, value: &[u8]) {
        let group = self.group.as_mut().expect("opened before its names are read");
        let expected = group.last.take().is_some_and(|(last, spilled)| last == *name && spilled);
        if !expected {
            self.find(format!("{}: extended attributes of nothing", self.path(dir, Some(name))));
        }
        self.xattrs(value, &|sweep: &Self| sweep.path(dir, Some(name)));
    }
}

/// Returns a name for messages. Paths are looked up only when there is something to report.
pub(super) type Namer<'n, 'a> = &'n dyn Fn(&Sweep<'a>) -> String;
