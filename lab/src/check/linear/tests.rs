//! Small histories, right and wrong.

use super::*;

const ROOT: Ino = Ino(1);

fn path(text: &str) -> Path {
    Path(text.bytes().collect())
}

fn attributes(ino: u64, dir: Option<(u32, u64)>, nlink: u32) -> Attributes {
    Attributes { ino: Ino(ino), dir, nlink }
}

fn made_dir(ino: u64) -> Answer {
    Ok(Seen::Made(attributes(ino, Some((0o755, 0)), 2)))
}

fn made_file(ino: u64) -> Answer {
    Ok(Seen::Made(attributes(ino, None, 1)))
}

fn file(ino: u64, nlink: u32) -> Answer {
    Ok(Seen::Found(attributes(ino, None, nlink)))
}

fn dir(ino: u64, entries: u64, nlink: u32) -> Answer {
    Ok(Seen::Found(attributes(ino, Some((0o755, entries)), nlink)))
}

fn names(list: &[(char, u64, bool)]) -> Answer {
    let named =
        list.iter().map(|(name, ino, dir)| (u8::try_from(*name).unwrap(), (Ino(*ino), *dir)));
    Ok(Seen::Names(named.collect()))
}

fn mkdir(at: &str) -> Call {
    Call::Mkdir(path(at))
}

fn create(at: &str) -> Call {
    Call::Create(path(at))
}

fn stat(at: &str) -> Call {
    Call::Stat(path(at), By::Root)
}

fn list(at: &str) -> Call {
    Call::List(path(at), By::Root)
}

fn rename(from: &str, to: &str) -> Call {
    Call::Rename(path(from), path(to), RenameMode::Replace)
}

fn exchange(from: &str, to: &str) -> Call {
    Call::Rename(path(from), path(to), RenameMode::Exchange)
}

const DONE: Answer = Ok(Seen::Nothing);
const NOT_FOUND: Answer = Err(FsError::NotFound);

impl History {
    fn one() -> History {
        History::new(ROOT, Extent::Server)
    }

    /// The same, where directories are in several partitions.
    fn divided(self) -> History {
        History { extent: Extent::Partitions, ..self }
    }

    /// One after another.
    fn then(mut self, call: Call, answer: Answer) -> History {
        let operation = self.call("-", call);
        self.answer(operation, answer);
        self
    }

    /// All at the same time.
    fn at_once(mut self, all: &[(Call, Answer)]) -> History {
        let called: Vec<usize> = all.iter().map(|(call, _)| self.call("-", call.clone())).collect();
        for (operation, (_, answer)) in called.into_iter().zip(all) {
            self.answer(operation, answer.clone());
        }
        self
    }

    /// While this is under way.
    fn during(
        mut self,
        call: Call,
        answer: Option<Answer>,
        meanwhile: impl FnOnce(History) -> History,
    ) -> History {
        let operation = self.call("-", call);
        self = meanwhile(self);
        if let Some(answer) = answer {
            self.answer(operation, answer);
        }
        self
    }

    #[track_caller]
    fn accepted(&self) {
        let states = match check(self) {
            Ok(Verdict::Linearizable { states }) => states,
            Ok(Verdict::GaveUp) => panic!("gave up"),
            Err(refused) => panic!("{}", refused.why),
        };
        assert!(states < 10_000, "{states} states");
    }

    #[track_caller]
    fn refused(&self) {
        assert!(check(self).is_err(), "it was accepted");
    }
}

#[test]
fn one_after_another_is_as_one_alone() {
    let history = History::one()
        .then(mkdir("a"), made_dir(2))
        .then(mkdir("a"), Err(FsError::Exists))
        .then(create("ab"), made_file(3))
        .then(Call::Link(path("ab"), path("c")), DONE)
        .then(stat("c"), file(3, 2))
        .then(stat("a"), dir(2, 1, 2))
        .then(Call::Rmdir(path("a")), Err(FsError::NotEmpty))
        .then(rename("a", "ax"), Err(FsError::Invalid))
        .then(rename("a", "b"), DONE)
        .then(stat("ab"), NOT_FOUND)
        .then(list("b"), names(&[('b', 3, false)]))
        .then(exchange("b", "c"), DONE)
        .then(stat("b"), file(3, 2))
        .then(stat("cb"), file(3, 2))
        .then(stat("bx"), Err(FsError::NotDirectory))
        .then(Call::Unlink(path("cb")), DONE)
        .then(Call::Rmdir(path("c")), DONE)
        .then(list(""), names(&[('b', 3, false)]));
    history.accepted();
}

#[test]
fn what_is_concurrent_may_have_been_in_any_order() {
    let begun = History::one().then(mkdir("a"), made_dir(2));
    begun.clone().at_once(&[(stat("b"), dir(2, 0, 2)), (rename("a", "b"), DONE)]).accepted();
    begun.clone().at_once(&[(stat("b"), NOT_FOUND), (rename("a", "b"), DONE)]).accepted();
    begun
        .clone()
        .during(rename("a", "b"), Some(DONE), |history| {
            history.then(stat("a"), dir(2, 0, 2)).then(stat("b"), dir(2, 0, 2))
        })
        .accepted();
    // Four makers of one name: one of them wins, whoever it is.
    let refused = || (mkdir("x"), Err(FsError::Exists));
    begun.at_once(&[refused(), refused(), (mkdir("x"), made_dir(7)), refused()]).accepted();
}

#[test]
fn a_stale_read_is_refused() {
    let begun = History::one().then(mkdir("a"), made_dir(2)).then(rename("a", "b"), DONE);
    begun.clone().then(stat("a"), dir(2, 0, 2)).refused();
    begun.clone().then(stat("b"), NOT_FOUND).refused();
    begun.clone().then(list(""), names(&[('a', 2, true)])).refused();
    begun.then(create("b"), made_file(3)).refused();
}

#[test]
fn what_was_seen_cannot_be_unseen() {
    let begun = History::one().then(mkdir("a"), made_dir(2));
    begun
        .during(rename("a", "b"), Some(DONE), |history| {
            history.then(stat("b"), dir(2, 0, 2)).then(stat("a"), dir(2, 0, 2))
        })
        .refused();
}

#[test]
fn a_lost_change_is_refused() {
    let begun = History::one().then(mkdir("a"), made_dir(2)).then(create("ab"), made_file(3));
    begun.clone().then(stat("ab"), NOT_FOUND).refused();
    begun.clone().then(stat("a"), dir(2, 0, 2)).refused();
    begun.clone().then(Call::Unlink(path("ab")), DONE).then(stat("ab"), file(3, 1)).refused();
    begun
        .then(Call::Chmod(path("a"), 0o700), Ok(Seen::Made(attributes(2, Some((0o755, 1)), 2))))
        .refused();
}

#[test]
fn a_change_that_a_full_disk_refuses_changes_nothing() {
    let begun = History::one().then(mkdir("a"), made_dir(2));
    let full = || Err(FsError::NoSpace);
    let after = begun.clone().then(create("ab"), full()).then(rename("a", "b"), full());
    after.clone().then(stat("a"), dir(2, 0, 2)).accepted();
    after.clone().then(stat("ab"), file(3, 1)).refused();
    after.clone().then(stat("b"), dir(2, 0, 2)).refused();
    after.then(stat("a"), full()).refused();
    begun.then(list(""), full()).refused();
}

#[test]
fn a_change_that_is_done_twice_is_refused() {
    let begun = History::one().then(create("a"), made_file(2));
    // The removal was answered, a new file was made, and the removal came again.
    begun
        .clone()
        .then(Call::Unlink(path("a")), DONE)
        .then(create("a"), made_file(3))
        .then(stat("a"), NOT_FOUND)
        .refused();
    begun.then(Call::Link(path("a"), path("b")), DONE).then(stat("a"), file(2, 3)).refused();
}

#[test]
fn a_doubled_name_is_refused() {
    let begun = History::one().then(mkdir("a"), made_dir(2));
    begun
        .clone()
        .then(mkdir("b"), made_dir(3))
        .at_once(&[(rename("a", "bc"), DONE), (rename("a", "d"), DONE)])
        .refused();
    begun.clone().at_once(&[(create("x"), made_file(4)), (create("x"), made_file(5))]).refused();
    begun
        .then(rename("a", "b"), DONE)
        .then(list(""), names(&[('a', 2, true), ('b', 2, true)]))
        .refused();
}

#[test]
fn half_a_rename_is_refused() {
    let begun = History::one().then(create("a"), made_file(2)).then(mkdir("d"), made_dir(3));
    let meanwhile =
        |look: fn(History) -> History| begun.clone().during(rename("a", "dx"), Some(DONE), look);
    meanwhile(|history| history.then(stat("a"), NOT_FOUND).then(stat("dx"), NOT_FOUND)).refused();
    meanwhile(|history| history.then(stat("dx"), file(2, 1)).then(stat("a"), file(2, 1))).refused();
    meanwhile(|history| history.then(stat("dx"), file(2, 2))).refused();
    meanwhile(|history| history.then(stat("dx"), file(2, 1)).then(stat("d"), dir(3, 0, 2)))
        .refused();
    meanwhile(|history| history.then(stat("a"), NOT_FOUND).then(stat("dx"), file(2, 1))).accepted();
}

#[test]
fn an_exchange_by_halves_is_refused() {
    let begun = History::one().then(create("a"), made_file(2)).then(create("b"), made_file(3));
    let meanwhile =
        |look: fn(History) -> History| begun.clone().during(exchange("a", "b"), Some(DONE), look);
    meanwhile(|history| history.then(stat("a"), file(3, 1)).then(stat("b"), file(3, 1))).refused();
    meanwhile(|history| history.then(stat("a"), NOT_FOUND)).refused();
    meanwhile(|history| history.then(list(""), names(&[('a', 3, false), ('b', 3, false)])))
        .refused();
    meanwhile(|history| history.then(list(""), names(&[('a', 3, false), ('b', 2, false)])))
        .accepted();
}

#[test]
fn what_never_was_is_refused() {
    History::one().then(stat("a"), file(2, 1)).refused();
    History::one().then(create("a"), made_file(2)).then(stat("a"), file(9, 1)).refused();
    History::one().then(mkdir("a"), made_dir(2)).then(mkdir("b"), made_dir(2)).refused();
}

#[test]
fn a_loop_of_directories_is_refused() {
    let begun = History::one().then(mkdir("a"), made_dir(2)).then(mkdir("b"), made_dir(3));
    let both = [(rename("a", "bx"), DONE), (rename("b", "ax"), DONE)];
    begun.clone().at_once(&both).refused();
    begun.at_once(&[(rename("a", "bx"), DONE), (rename("b", "ax"), NOT_FOUND)]).accepted();
}

#[test]
fn what_was_never_answered_may_have_happened_at_any_time_or_not() {
    let begun =
        History::one().during(mkdir("a"), None, |history| history.then(stat("a"), NOT_FOUND));
    begun.clone().then(stat("a"), NOT_FOUND).accepted();
    begun.clone().then(stat("a"), dir(8, 0, 2)).then(stat("a"), dir(8, 0, 2)).accepted();
    begun.clone().then(stat("a"), dir(8, 0, 2)).then(stat("a"), dir(9, 0, 2)).refused();
    begun.clone().then(stat("a"), dir(8, 0, 2)).then(stat("a"), NOT_FOUND).refused();
    begun.then(mkdir("a"), made_dir(5)).then(stat("a"), dir(5, 0, 2)).accepted();
}

#[test]
fn who_may_not_look_sees_nothing() {
    let closed = Ok(Seen::Made(attributes(2, Some((0o700, 1)), 2)));
    let history = History::one()
        .then(mkdir("a"), made_dir(2))
        .then(create("ab"), made_file(3))
        .then(Call::Chmod(path("a"), 0o700), closed);
    let user = || Call::Stat(path("ab"), By::User);
    history.clone().then(user(), Err(FsError::Denied)).accepted();
    history.clone().then(Call::List(path("a"), By::User), Err(FsError::Denied)).accepted();
    history.clone().then(stat("ab"), file(3, 1)).accepted();
    history.then(user(), file(3, 1)).refused();
}

#[test]
fn what_changes_nothing_now_may_change_something_later() {
    let set = |mode: u32| {
        (Call::Chmod(path("a"), mode), Ok(Seen::Made(attributes(2, Some((mode, 0)), 2))))
    };
    let look = || Call::Stat(path("ab"), By::User);
    let begun = History::one().then(mkdir("a"), made_dir(2)).at_once(&[set(0o700), set(0o755)]);
    begun.clone().then(look(), NOT_FOUND).accepted();
    begun.then(look(), Err(FsError::Denied)).accepted();
}

#[test]
fn some_operations_find_at_one_point_and_work_at_another() {
    let begun = History::one().then(mkdir("a"), made_dir(2)).then(create("f"), made_file(3));
    let moved =
        |history: History| history.then(rename("a", "b"), DONE).then(create("bc"), made_file(4));
    // The directory was looked up by its old name and listed under its new one.
    begun.clone().during(list("a"), Some(names(&[('c', 4, false)])), moved).accepted();
    begun.clone().then(rename("a", "b"), DONE).then(list("a"), names(&[])).refused();
    let linked = |history: History| history.then(rename("f", "g"), DONE).then(stat("f"), NOT_FOUND);
    begun.clone().during(Call::Link(path("f"), path("h")), Some(DONE), linked).accepted();
    let stat_of = |extent| {
        let history = History { extent, ..begun.clone() };
        history.during(stat("a"), Some(dir(2, 1, 2)), moved)
    };
    stat_of(Extent::Servers).accepted();
    stat_of(Extent::Partitions).accepted();
    stat_of(Extent::Server).refused();
}

#[test]
fn a_listing_of_partitions_has_what_stayed_and_what_came_or_went_or_not() {
    let begun = History::one()
        .divided()
        .then(create("a"), made_file(2))
        .then(create("b"), made_file(3))
        .then(mkdir("d"), made_dir(4));
    let renamed = |listed: &[(char, u64, bool)]| {
        begun.clone().during(list(""), Some(names(listed)), |history| {
            history.then(rename("b", "c"), DONE).then(create("e"), made_file(5))
        })
    };
    // Neither, both, or one of them.
    renamed(&[('a', 2, false), ('d', 4, true)]).accepted();
    renamed(&[('a', 2, false), ('b', 3, false), ('c', 3, false), ('d', 4, true)]).accepted();
    renamed(&[('a', 2, false), ('b', 3, false), ('d', 4, true), ('e', 5, false)]).accepted();
    // No single moment shows this listing.
    let whole = History { extent: Extent::Servers, ..renamed(&[('a', 2, false), ('d', 4, true)]) };
    whole.refused();
    // A name that stayed is missing or is another inode, or a name that never existed is listed.
    renamed(&[('b', 3, false), ('d', 4, true)]).refused();
    renamed(&[('a', 2, false)]).refused();
    renamed(&[('a', 3, false), ('d', 4, true)]).refused();
    renamed(&[('a', 2, false), ('d', 4, false)]).refused();
    renamed(&[('a', 2, false), ('d', 4, true), ('x', 9, false)]).refused();
    renamed(&[('a', 2, false), ('d', 4, true), ('?', 9, false)]).refused();
}

#[test]
fn a_listing_of_partitions_that_is_alone_has_one_moment() {
    let begun = History::one().divided().then(create("a"), made_file(2));
    let begun = begun.then(rename("a", "b"), DONE);
    begun.clone().then(list(""), names(&[('b', 2, false)])).accepted();
    begun.clone().then(list(""), names(&[('a', 2, false), ('b', 2, false)])).refused();
    begun.clone().then(list(""), names(&[('a', 2, false)])).refused();
    begun.clone().then(list(""), names(&[])).refused();
    begun.then(list(""), Err(FsError::Io)).refused();
}

#[test]
fn a_listing_of_partitions_may_begin_anew_in_another_directory() {
    let begun = History::one()
        .divided()
        .then(mkdir("a"), made_dir(2))
        .then(create("ax"), made_file(3))
        .then(mkdir("b"), made_dir(4))
        .then(create("by"), made_file(5));
    let swapped = |listed: &[(char, u64, bool)]| {
        begun.clone().during(list("a"), Some(names(listed)), |history| {
            history.then(exchange("a", "b"), DONE).then(create("az"), made_file(6))
        })
    };
    swapped(&[('x', 3, false)]).accepted();
    swapped(&[('y', 5, false)]).accepted();
    swapped(&[('y', 5, false), ('z', 6, false)]).accepted();
    swapped(&[('x', 3, false), ('y', 5, false)]).refused();
    swapped(&[('x', 3, false), ('z', 6, false)]).refused();
}

#[test]
fn a_listing_of_partitions_may_end_with_its_directory() {
    let begun = History::one().divided().then(mkdir("a"), made_dir(2));
    let removed = |history: History| history.then(Call::Rmdir(path("a")), DONE);
    let stale = || Some(Err(FsError::Stale));
    begun.clone().during(list("a"), stale(), removed).accepted();
    begun.clone().during(list("a"), stale(), |history| history).refused();
    begun.clone().during(list("a"), Some(NOT_FOUND), removed).accepted();
    removed(begun).then(list("a"), Err(FsError::Stale)).refused();
}

#[test]
fn a_listing_of_partitions_shows_what_was_never_answered() {
    let begun = History::one()
        .divided()
        .during(create("a"), None, |history| history.then(list(""), names(&[])));
    let seen = begun.clone().then(list(""), names(&[('a', 7, false)]));
    seen.clone().then(stat("a"), file(7, 1)).accepted();
    seen.clone().then(stat("a"), file(8, 1)).refused();
    seen.then(list(""), names(&[])).refused();
    begun.then(list(""), names(&[('a', 7, true)])).refused();
}

#[test]
fn long_histories_of_many_are_checked_quickly() {
    let mut history = History::one().then(mkdir("a"), made_dir(2)).then(mkdir("b"), made_dir(3));
    for round in 0..40u64 {
        let ino = 10 + round;
        history = history
            .at_once(
                &[
                    (create("ax"), made_file(ino)),
                    (stat("ax"), file(ino, 1)),
                    (rename("ax", "by"), DONE),
                    (rename("a", "c"), NOT_FOUND),
                    (stat("by"), NOT_FOUND),
                    (list("b"), names(&[('y', ino, false)])),
                ]
                .map(|(call, answer)| match call {
                    // Somebody moves the directory away and back meanwhile.
                    Call::Rename(from, _, _) if from == path("a") => (rename("c", "a"), NOT_FOUND),
                    call => (call, answer),
                }),
            )
            .then(Call::Unlink(path("by")), DONE);
    }
    history.accepted();
}
