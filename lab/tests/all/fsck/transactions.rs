//! Transactions that stay prepared.

use base::Encode as _;

use super::{SERVERS, elsewhere, on_a_cluster, repair, with_cluster};

/// Key of a prepared transaction.
fn prepared(server: u16) -> Vec<u8> {
    let number = 12345u64;
    [&[0xff, 0xff, b'P'][..], &server.to_be_bytes(), &77u64.to_be_bytes(), &number.to_be_bytes()]
        .concat()
}

/// A prepared record that would put `value` under `key`.
fn would_put(version: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut record = vec![version];
    Vec::<bytes::Bytes>::new().encode(&mut record);
    let put = wire::PeerWrite::Put((key.to_vec().into(), value.to_vec().into()));
    vec![put].encode(&mut record);
    None::<bytes::Bytes>.encode(&mut record);
    record
}

#[test]
fn a_transaction_that_stays_prepared_ends_as_its_initiator_says() {
    on_a_cluster(async |cluster, client| {
        let (found, _) = elsewhere(cluster, client).await;
        let (key, value) = cluster.entry(&found, "link");
        let host = cluster.host(u16::from_be_bytes([key[0], key[1]]));
        let end = key.len() - "link".len() - 2;
        let new = [&key[..end], b"new\0\0"].concat();
        let initiator = u16::try_from((host + 1) % usize::from(SERVERS)).unwrap();
        cluster.slip(host, &prepared(initiator), &would_put(value[0], &new, &value));
        cluster.finds(client, "stays prepared, which says that it is aborted").await;
        assert_eq!(cluster.get(host, &new), None);
    });
}

#[test]
fn a_transaction_that_is_committed_elsewhere_is_applied() {
    on_a_cluster(async |cluster, client| {
        let (found, name) = elsewhere(cluster, client).await;
        let (key, value) = cluster.entry(&found, "link");
        let host = cluster.host(u16::from_be_bytes([key[0], key[1]]));
        let initiator = (host + 1) % usize::from(SERVERS);
        // The transaction puts back the record that is removed here.
        cluster.delete(&key);
        let id = prepared(u16::try_from(initiator).unwrap());
        cluster.slip(host, &id, &would_put(value[0], &key, &value));
        let mut committed = id.clone();
        committed[2] = b'X';
        let mut record = vec![value[0]];
        vec![u16::try_from(host).unwrap()].encode(&mut record);
        None::<bytes::Bytes>.encode(&mut record);
        cluster.slip(initiator, &committed, &record);
        cluster.finds(client, "stays prepared, which says that it is committed").await;
        let repaired = repair(&cluster.world, client).await;
        assert!(repaired.iter().all(|line| line.starts_with("repaired: ")), "{repaired:#?}");
        assert_eq!(client.stat(format!("/{name}/link")).await.unwrap().nlink, 7);
        cluster.delete(&key);
    });
}

#[test]
fn a_transaction_that_nobody_can_have_begun_stays() {
    with_cluster(async |cluster, client| {
        let (found, _) = elsewhere(cluster, client).await;
        let (key, value) = cluster.entry(&found, "link");
        let host = cluster.host(u16::from_be_bytes([key[0], key[1]]));
        cluster.slip(host, &prepared(SERVERS + 4), &would_put(value[0], b"\0\0Nnone", b""));
        cluster.stays(client, "stays prepared, and no other server can have begun it").await;
    });
}
