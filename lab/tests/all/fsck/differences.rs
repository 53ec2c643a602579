//! Differences between servers: directories, entries, inodes and names that one has and another
//! does not.

use base::{Encode as _, placement::shard_of};
use client::FileSystem as _;
use wire::{DirRef, XattrMode};

use super::{KIND, SERVERS, dir, elsewhere, on_a_cluster, repair, with_cluster};

#[test]
fn what_nothing_leads_to_goes_to_the_partition_that_has_its_name() {
    on_a_cluster(async |cluster, client| {
        let root = client.root().0;
        client.mkdir("/lost+found", 0o700).await.unwrap();
        let set = client.set_xattr("/lost+found", "pando.large_dir", b"3", XattrMode::Set);
        set.await.unwrap();
        for number in 0..6 {
            client.write(format!("/first{number}"), b"contents").await.unwrap();
            client.link(format!("/first{number}"), format!("/second{number}")).await.unwrap();
        }
        client.sync().await.unwrap();
        for name in (0..6).flat_map(|number| ["first", "second"].map(|at| format!("{at}{number}")))
        {
            cluster.delete(&cluster.entry(&root, &name).0);
        }
        let found = repair(&cluster.world, client).await;
        assert!(found.iter().all(|line| line.starts_with("repaired: ")), "{found:#?}");
        let listed = client.read_dir("/lost+found").await.unwrap().all().await.unwrap();
        assert_eq!(listed.len(), 6);
        for entry in listed {
            let read = client.read(format!("/lost+found/{}", entry.name)).await.unwrap();
            assert_eq!(&read[..], b"contents");
        }
        // The harness expects a finding after this.
        let (key, _) = cluster.entry(&root, "p");
        cluster.delete(&key);
    });
}

#[test]
fn a_directory_without_contents_on_another_server_is_found() {
    on_a_cluster(async |cluster, client| {
        let (lost, name) = elsewhere(cluster, client).await;
        let (key, _) = cluster.of_dir(b'D', &lost).remove(0);
        cluster.delete(&key);
        cluster.finds(client, &format!("/{name} has no content record")).await;
    });
}

#[test]
fn a_directory_without_its_entry_on_another_server_is_found() {
    on_a_cluster(async |cluster, client| {
        let (_, name) = elsewhere(cluster, client).await;
        let (key, _) = cluster.entry(&client.root().0, &name);
        cluster.delete(&key);
        cluster.finds(client, &format!("/{name} is not there, but its contents are")).await;
    });
}

#[test]
fn a_directory_that_is_entered_twice_is_found() {
    on_a_cluster(async |cluster, client| {
        let (_, name) = elsewhere(cluster, client).await;
        let (key, value) = cluster.entry(&client.root().0, &name);
        let end = key.len() - name.len() - 2;
        cluster.put(&[&key[..end], b"twice\0\0"].concat(), &value);
        cluster.finds(client, "/twice is the directory that is at ").await;
    });
}

#[test]
fn an_inode_whose_names_are_on_other_servers_counts_them() {
    on_a_cluster(async |cluster, client| {
        let (dir, _) = elsewhere(cluster, client).await;
        let (key, _) = cluster.entry(&dir, "link");
        cluster.delete(&key);
        cluster.finds(client, "counts 7 names, but all servers together have 6").await;
    });
}

#[test]
fn a_record_of_a_shard_that_another_server_has_is_found_and_stays() {
    with_cluster(async |cluster, client| {
        let (dir, _) = elsewhere(cluster, client).await;
        let (key, value) = cluster.of_dir(b'D', &dir).remove(0);
        let here = cluster.host(u16::from_be_bytes([key[0], key[1]]));
        cluster.slip((here + 1) % usize::from(SERVERS), &key, &value);
        cluster.finds(client, "a record of a shard that another server has").await;
        cluster.stays(client, "a record of a shard that another server has").await;
    });
}

#[test]
fn a_loop_that_nothing_leads_to_is_found() {
    on_a_cluster(async |cluster, client| {
        let p = dir(client, &client.root().0, "p").await;
        let q = dir(client, &p, "q").await;
        let r = dir(client, &q, "r").await;
        // `q` is in `r`, which is in `q`.
        let (key, entry) = cluster.entry(&p, "q");
        let shard = shard_of(r.home, 0, cluster.shards).0.to_be_bytes();
        let rest = &key[KIND + 1 + 16..];
        cluster.delete(&key);
        cluster.put(&[&shard[..], b"N", &r.id.0.to_be_bytes(), rest].concat(), &entry);
        let (key, content) = cluster.of_dir(b'D', &q).remove(0);
        let pointer = |dir: &DirRef| {
            let mut bytes = Vec::new();
            (dir.id, dir.ino).encode(&mut bytes);
            dir.home.encode(&mut bytes);
            bytes
        };
        let (from, to) = (pointer(&p), pointer(&r));
        let at = content.windows(from.len()).position(|bytes| bytes == from).unwrap();
        let content = [&content[..at], &to, &content[at + from.len()..]].concat();
        cluster.put(&key, &content);
        cluster.finds(client, &format!("directory {} is in a loop", q.id)).await;
    });
}

#[test]
fn a_directory_whose_parent_is_gone_is_in_lost_and_found_with_all_below_it() {
    on_a_cluster(async |cluster, client| {
        // The record and all entries of the parent of `q` are lost.
        let p = dir(client, &client.root().0, "p").await;
        let (key, _) = cluster.entry(&client.root().0, "p");
        cluster.delete(&key);
        let (key, _) = cluster.of_dir(b'D', &p).remove(0);
        cluster.delete(&key);
        let (key, _) = cluster.entry(&p, "q");
        cluster.delete(&key);
        cluster.finds(client, "is in a directory that is not there").await;
        let repaired = repair(&cluster.world, client).await;
        assert!(repaired.iter().all(|line| line.starts_with("repaired: ")), "{repaired:#?}");
        let found = client.read_dir("/lost+found").await.unwrap().all().await.unwrap();
        let mut below = Vec::new();
        for entry in found {
            let name = String::from_utf8(entry.name.as_bytes().to_vec()).unwrap();
            below.extend(client.stat(format!("/lost+found/{name}/r")).await.ok());
        }
        assert_eq!(below.len(), 1, "{repaired:#?}");
        // The harness needs something to repair.
        let (key, _) = cluster.entry(&dir(client, &client.root().0, "d0").await, "link");
        cluster.delete(&key);
    });
}

#[test]
fn names_that_lead_to_no_inode_are_removed() {
    on_a_cluster(async |cluster, client| {
        let ino = client.stat("/file").await.unwrap().ino;
        let key = [&ino.shard().0.to_be_bytes()[..], b"I", &ino.0.to_be_bytes(), &[0]].concat();
        cluster.delete(&key);
        cluster.finds(client, &format!("leads to inode {ino}, which is not in its slot")).await;
    });
}

#[test]
fn an_inode_without_any_name_gets_one() {
    on_a_cluster(async |cluster, client| {
        let ino = client.stat("/file").await.unwrap().ino;
        for number in 0..6 {
            let holder = dir(client, &client.root().0, &format!("d{number}")).await;
            let (key, _) = cluster.entry(&holder, "link");
            cluster.delete(&key);
        }
        let (key, _) = cluster.entry(&client.root().0, "file");
        cluster.delete(&key);
        cluster.finds(client, "counts 7 names, but all servers together have 0").await;
        repair(&cluster.world, client).await;
        let saved = client.read(format!("/lost+found/{}", ino.0)).await.unwrap();
        assert_eq!(&saved[..], b"contents");
        let (key, _) = cluster.entry(&client.root().0, "d0");
        cluster.delete(&key);
    });
}

#[test]
fn an_entry_that_repeats_another_mode_gets_the_right_one() {
    on_a_cluster(async |cluster, client| {
        let (found, name) = elsewhere(cluster, client).await;
        let (key, content) = cluster.of_dir(b'D', &found).remove(0);
        let (mut was, mut new) = (Vec::new(), Vec::new());
        0o755u32.encode(&mut was);
        0o700u32.encode(&mut new);
        let at = content.windows(was.len()).position(|bytes| bytes == was).unwrap();
        let content = [&content[..at], &new, &content[at + was.len()..]].concat();
        cluster.put(&key, &content);
        cluster.finds(client, &format!("/{name}: its entry has another mode, owner or home")).await;
    });
}

#[test]
fn a_directory_that_was_moved_is_known_where_it_was_born() {
    on_a_cluster(async |cluster, client| {
        let q = [b"q", &[0, 1][..]].concat();
        let all = cluster.of_dir(b'N', &client.root().0).into_iter();
        let (key, _) = all.into_iter().find(|(key, _)| key.ends_with(&q)).unwrap();
        cluster.delete(&key);
        cluster.finds(client, "was moved and its birth place does not know").await;
    });
}

#[test]
fn inode_numbers_that_two_servers_use_are_found_and_stay() {
    with_cluster(async |cluster, client| {
        let (found, name) = elsewhere(cluster, client).await;
        let host = cluster.host(shard_of(found.home, 0, cluster.shards).0);
        let mut taken = None;
        for path in ["/file", "/p", "/q", "/d0", "/d1", "/d2", "/d3", "/d4", "/d5"] {
            let Ok(attr) = client.stat(path).await else { continue };
            let other = if attr.kind == base::FileKind::Directory {
                let there = dir(client, &client.root().0, &path[1..]).await;
                cluster.host(shard_of(there.home, 0, cluster.shards).0)
            } else {
                cluster.host(attr.ino.shard().0)
            };
            taken = taken.or((other != host).then_some(attr.ino));
        }
        let (mut was, mut new) = (Vec::new(), Vec::new());
        found.ino.encode(&mut was);
        let taken = taken.unwrap();
        taken.encode(&mut new);
        let records =
            [cluster.of_dir(b'D', &found).remove(0), cluster.entry(&client.root().0, &name)];
        for (key, record) in records {
            let at = record.windows(was.len()).position(|bytes| bytes == was).unwrap();
            cluster.put(&key, &[&record[..at], &new, &record[at + was.len()..]].concat());
        }
        let line = format!("inode number {taken} is used on several servers: ");
        cluster.finds(client, &line).await;
        cluster.stays(client, &line).await;
    });
}
