//! `pando s3` as the AWS SDK for Go meets it, over plain HTTP and through TLS.

use std::process::Command;

use crate::{
    go::built,
    s3_gateway::{Served, foreign},
};

#[test]
fn the_aws_sdk_for_go_finds_what_s3_promises() {
    let Some(program) = built("tests/program/s3_sdk", ".", "s3-sdk") else { return };
    let served = Served::start();
    let said = foreign(Command::new(program).arg(served.address()));
    assert!(said.ends_with("passed refusals over TLS\n"), "{said}");
}
