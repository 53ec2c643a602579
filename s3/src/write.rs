//! Receiving objects and parts, and copying them.

use std::sync::Arc;

use s3s::{
    S3ErrorCode, S3Request, S3Result, TrailingHeaders,
    dto::{
        Checksum, CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopyPartResult, CopySource,
        MetadataDirective, ObjectCannedACL, PutObjectInput, PutObjectOutput, Range, StorageClass,
        StreamingBlob, TaggingDirective, UploadPartCopyInput, UploadPartCopyOutput,
        UploadPartInput, UploadPartOutput,
    },
};

use crate::{
    commit::{self, Wanted},
    conditions::Conditions,
    error::{invalid, not_implemented},
    fs::Fs,
    gateway::Gateway,
    key::Key,
    metadata::{self, EMPTY_ETAG, Headers, strong},
    multipart::{self, PART_BYTES_MAX},
    read::{self, Open, bytes_of},
    staging::{Digest, Facts, Staged},
};

/// Bytes of an object at most; the file system says earlier when it is full.
const OBJECT_BYTES_MAX: u64 = base::limits::FILE_BYTES_MAX;

/// Bytes of a body at most after which what was found before it is still believed.
const PLACED_BYTES_MAX: u64 = 64 << 10;

/// Features that a request may ask for, and that this gateway has not.
#[derive(Debug, Default)]
pub(crate) struct Extras {
    pub(crate) private: bool,
    pub(crate) storage_class: Option<StorageClass>,
    pub(crate) encrypted: bool,
    pub(crate) locked: bool,
}

impl Extras {
    /// Refuses what would be promised and not kept.
    pub(crate) fn check(&self) -> S3Result<()> {
        if !self.private {
            return Err(not_implemented("access is by tokens and permissions: there are no ACLs"));
        }
        if self.encrypted {
            return Err(not_implemented("the gateway does not encrypt objects"));
        }
        if self.locked {
            return Err(not_implemented("objects cannot be locked"));
        }
        match self.storage_class.as_ref().map(StorageClass::as_str) {
            None | Some(StorageClass::STANDARD) => Ok(()),
            Some(_) => Err(S3ErrorCode::InvalidStorageClass.into()),
        }
    }
}

/// Whether a canned ACL says what is so anyway.
pub(crate) fn is_private(acl: Option<&ObjectCannedACL>) -> bool {
    acl.is_none_or(|acl| acl.as_str() == ObjectCannedACL::PRIVATE)
}

/// Puts an object.
pub(crate) async fn put(
    gateway: &Gateway,
    fs: &Fs,
    request: S3Request<PutObjectInput>,
) -> S3Result<PutObjectOutput> {
    let input = request.input;
    Extras {
        private: is_private(input.acl.as_ref()),
        storage_class: input.storage_class,
        encrypted: input.server_side_encryption.is_some()
            || input.ssekms_key_id.is_some()
            || input.sse_customer_key.is_some()
            || input.sse_customer_algorithm.is_some(),
        locked: input.object_lock_mode.is_some() || input.object_lock_legal_hold_status.is_some(),
    }
    .check()?;
    if input.write_offset_bytes.is_some() {
        return Err(not_implemented("objects are written whole"));
    }
    let key = Key::parse(&input.key)?;
    let wanted = Wanted::new(input.if_match, input.if_none_match)?;
    let mut headers = Headers {
        content_type: input.content_type,
        content_encoding: input.content_encoding.and_then(without_chunks),
        content_disposition: input.content_disposition,
        content_language: input.content_language,
        cache_control: input.cache_control,
        website_redirect_location: input.website_redirect_location,
        ..Headers::default()
    };
    headers.set_expires(input.expires);
    headers.set_user(input.metadata)?;
    let tags = metadata::tags_of_header(input.tagging.as_deref().unwrap_or(""))?;
    let stored_tags = metadata::tags_to_bytes(&tags)?;
    if key.directory {
        if input.content_length.is_some_and(|len| len > 0) {
            return Err(invalid(
                "an object whose key ends with a slash is a directory: no contents",
            ));
        }
        let bucket = gateway.bucket(fs, &input.bucket).await?;
        let at = (&bucket, &key);
        let etag = commit::put_directory(gateway, fs, at, (&headers, &tags), &wanted).await?;
        return Ok(PutObjectOutput { e_tag: Some(strong(&etag)), ..PutObjectOutput::default() });
    }
    let given = Checksum {
        checksum_crc32: input.checksum_crc32,
        checksum_crc32c: input.checksum_crc32c,
        checksum_crc64nvme: input.checksum_crc64nvme,
        checksum_sha1: input.checksum_sha1,
        checksum_sha256: input.checksum_sha256,
        ..Checksum::default()
    };
    let digest = Digest::new(input.content_md5, input.checksum_algorithm.as_ref(), given)?;
    let digest = digest.with_trailer(&request.headers);
    let (place, mut staged) = commit::begin(gateway, fs, (&input.bucket, &key)).await?;
    let expected = input.content_length.and_then(|len| u64::try_from(len).ok());
    let body = (input.body, expected, OBJECT_BYTES_MAX);
    let trailers = request.trailing_headers.as_ref();
    let (etag, sums) = receive(&mut staged, body, digest, trailers).await?;
    headers.set_checksums(&sums);
    let (size, bucket) = (staged.size(), place.bucket);
    // Much may have changed while a large body came.
    let place = Some(place).filter(|_| size <= PLACED_BYTES_MAX && wanted.is_free());
    let (headers, tags) = (headers.to_bytes()?, stored_tags);
    let (etag_kept, place_kept) = (Some(etag.as_str()), place.as_ref());
    let facts = Facts { etag: etag_kept, headers, tags, upload: None, place: place_kept };
    staged.seal(facts).await?;
    commit::put(gateway, fs, (&bucket, &key), &mut staged, &wanted, place).await?;
    Ok(PutObjectOutput {
        checksum_crc32: sums.checksum_crc32,
        checksum_crc32c: sums.checksum_crc32c,
        checksum_crc64nvme: sums.checksum_crc64nvme,
        checksum_sha1: sums.checksum_sha1,
        checksum_sha256: sums.checksum_sha256,
        e_tag: Some(strong(&etag)),
        size: Some(metadata::size(size)),
        ..PutObjectOutput::default()
    })
}

/// Receives a body; its MD5 and checksums.
async fn receive(
    staged: &mut Staged,
    (body, expected, bytes_max): (Option<StreamingBlob>, Option<u64>, u64),
    mut digest: Digest,
    trailers: Option<&TrailingHeaders>,
) -> S3Result<(String, Checksum)> {
    if expected.is_some_and(|expected| expected > bytes_max) {
        return Err(S3ErrorCode::EntityTooLarge.into());
    }
    if let Some(body) = body {
        staged.receive(body, (expected, bytes_max), &mut digest).await?;
    }
    digest.verify(trailers)
}

/// `aws-chunked` says how the request came, and not what the object is.
pub(crate) fn without_chunks(encoding: String) -> Option<String> {
    let left: Vec<_> = encoding
        .split(',')
        .map(str::trim)
        .filter(|one| !one.is_empty() && *one != "aws-chunked")
        .collect();
    (!left.is_empty()).then(|| left.join(", "))
}

/// Receives a part.
pub(crate) async fn upload_part(
    gateway: &Gateway,
    fs: &Fs,
    request: S3Request<UploadPartInput>,
) -> S3Result<UploadPartOutput> {
    let input = request.input;
    if input.sse_customer_key.is_some() || input.sse_customer_algorithm.is_some() {
        return Err(not_implemented("the gateway does not encrypt objects"));
    }
    let number = multipart::number(input.part_number)?;
    let bucket = gateway.bucket(fs, &input.bucket).await?;
    let upload = multipart::find(gateway, fs, &bucket, &input.key, &input.upload_id).await?;
    let given = Checksum {
        checksum_crc32: input.checksum_crc32,
        checksum_crc32c: input.checksum_crc32c,
        checksum_crc64nvme: input.checksum_crc64nvme,
        checksum_sha1: input.checksum_sha1,
        checksum_sha256: input.checksum_sha256,
        ..Checksum::default()
    };
    let digest = Digest::new(input.content_md5, input.checksum_algorithm.as_ref(), given)?;
    let digest = digest.with_trailer(&request.headers);
    let mut staged = multipart::stage(gateway, fs, &upload).await?;
    let expected = input.content_length.and_then(|len| u64::try_from(len).ok());
    let body = (input.body, expected, PART_BYTES_MAX);
    let trailers = request.trailing_headers.as_ref();
    let (md5, sums) = receive(&mut staged, body, digest, trailers).await?;
    multipart::keep(&mut staged, fs, &upload, number, &md5).await?;
    Ok(UploadPartOutput {
        checksum_crc32: sums.checksum_crc32,
        checksum_crc32c: sums.checksum_crc32c,
        checksum_crc64nvme: sums.checksum_crc64nvme,
        checksum_sha1: sums.checksum_sha1,
        checksum_sha256: sums.checksum_sha256,
        e_tag: Some(strong(&md5)),
        ..UploadPartOutput::default()
    })
}

/// Finds the source of a copy, if it is as the request wants it.
async fn source(
    gateway: &Gateway,
    fs: &Fs,
    source: &CopySource,
    conditions: Conditions,
) -> S3Result<(read::Object, Option<Arc<Open>>)> {
    let CopySource::Bucket { bucket, key, version_id } = source else {
        return Err(not_implemented("there are no access points"));
    };
    read::refuse(version_id.as_deref(), false)?;
    let (object, open) = read::open(gateway, fs, bucket, key).await?;
    let modified = metadata::last_modified(&object.attr);
    conditions.check(&object.known.etag, &modified, S3ErrorCode::PreconditionFailed)?;
    Ok((object, open))
}

/// Copies an object.
pub(crate) async fn copy(
    gateway: &Gateway,
    fs: &Fs,
    input: CopyObjectInput,
) -> S3Result<CopyObjectOutput> {
    Extras {
        private: is_private(input.acl.as_ref()),
        storage_class: input.storage_class,
        encrypted: input.server_side_encryption.is_some()
            || input.ssekms_key_id.is_some()
            || input.sse_customer_key.is_some()
            || input.copy_source_sse_customer_key.is_some(),
        locked: input.object_lock_mode.is_some() || input.object_lock_legal_hold_status.is_some(),
    }
    .check()?;
    let key = Key::parse(&input.key)?;
    let bucket = gateway.bucket(fs, &input.bucket).await?;
    let conditions = Conditions {
        matches: input.copy_source_if_match,
        none_match: input.copy_source_if_none_match,
        modified_since: input.copy_source_if_modified_since,
        unmodified_since: input.copy_source_if_unmodified_since,
    };
    let (object, open) = source(gateway, fs, &input.copy_source, conditions).await?;
    let replaces = input.metadata_directive.as_ref().map(MetadataDirective::as_str)
        == Some(MetadataDirective::REPLACE);
    let replaces_tags = input.tagging_directive.as_ref().map(TaggingDirective::as_str)
        == Some(TaggingDirective::REPLACE);
    let same = matches!(&input.copy_source, CopySource::Bucket { bucket, key, .. }
        if **bucket == *input.bucket && **key == *input.key);
    if same && !replaces && !replaces_tags {
        return Err(s3s::s3_error!(
            InvalidRequest,
            "an object is copied to itself only to change its metadata or tags"
        ));
    }
    let mut headers = object.known.headers.clone();
    if replaces {
        headers = Headers {
            content_type: input.content_type,
            content_encoding: input.content_encoding.and_then(without_chunks),
            content_disposition: input.content_disposition,
            content_language: input.content_language,
            cache_control: input.cache_control,
            website_redirect_location: input.website_redirect_location,
            checksums: headers.checksums,
            parts: headers.parts,
            ..Headers::default()
        };
        headers.set_expires(input.expires);
        headers.set_user(input.metadata)?;
    }
    let tags = match replaces_tags {
        true => metadata::tags_of_header(input.tagging.as_deref().unwrap_or(""))?,
        false => object.known.tags.clone(),
    };
    let stored_tags = metadata::tags_to_bytes(&tags)?;
    let wanted = Wanted::default();
    let (etag, modified) = match open {
        // An object without contents, as a directory is.
        None if key.directory => {
            let at = (&bucket, &key);
            commit::put_directory(gateway, fs, at, (&headers, &tags), &wanted).await?;
            (EMPTY_ETAG.to_owned(), metadata::last_modified(&object.attr))
        }
        Some(_) if key.directory => {
            return Err(invalid(
                "an object whose key ends with a slash is a directory: no contents",
            ));
        }
        open => {
            let mut staged = commit::stage(gateway, fs, &bucket).await?;
            if let Some(open) = &open {
                staged.copy(open.handle, 0, object.attr.size).await?;
                object.expect_unchanged(fs).await?;
            }
            // An ETag that is derived is of the source's file alone.
            let etag = &object.known.etag;
            let etag = Some(etag.as_str()).filter(|etag| is_md5(etag));
            let (headers, tags) = (headers.to_bytes()?, stored_tags);
            let attr = staged.seal(Facts { etag, headers, tags, ..Facts::default() }).await?;
            commit::put(gateway, fs, (&bucket, &key), &mut staged, &wanted, None).await?;
            let etag = etag.map_or_else(|| metadata::etag(&attr, &Vec::new()), str::to_owned);
            (etag, metadata::last_modified(&attr))
        }
    };
    let result = CopyObjectResult {
        e_tag: Some(strong(&etag)),
        last_modified: Some(modified),
        ..CopyObjectResult::default()
    };
    Ok(CopyObjectOutput { copy_object_result: Some(result), ..CopyObjectOutput::default() })
}

/// Whether an ETag is an MD5, or one of several parts: then it is of the contents.
fn is_md5(etag: &str) -> bool {
    let md5 = etag.split('-').next().unwrap_or(etag);
    md5.len() == 32 && etag.split('-').count() <= 2
}

/// Makes a range of an object a part.
pub(crate) async fn upload_part_copy(
    gateway: &Gateway,
    fs: &Fs,
    input: UploadPartCopyInput,
) -> S3Result<UploadPartCopyOutput> {
    if input.sse_customer_key.is_some() || input.copy_source_sse_customer_key.is_some() {
        return Err(not_implemented("the gateway does not encrypt objects"));
    }
    let number = multipart::number(input.part_number)?;
    let bucket = gateway.bucket(fs, &input.bucket).await?;
    let upload = multipart::find(gateway, fs, &bucket, &input.key, &input.upload_id).await?;
    let conditions = Conditions {
        matches: input.copy_source_if_match,
        none_match: input.copy_source_if_none_match,
        modified_since: input.copy_source_if_modified_since,
        unmodified_since: input.copy_source_if_unmodified_since,
    };
    let (object, open) = source(gateway, fs, &input.copy_source, conditions).await?;
    let range = match input.copy_source_range {
        Some(text) => {
            let range = Range::parse(&text).map_err(|_| invalid("the range of a copy is none"))?;
            // A part that is shorter than was asked for would be taken for whole.
            if matches!(range, Range::Int { last: Some(last), .. } if last >= object.attr.size) {
                return Err(S3ErrorCode::InvalidRange.into());
            }
            bytes_of(&range, object.attr.size)?
        }
        None => 0..object.attr.size,
    };
    // The bytes come through the gateway, as their MD5 is the part's ETag.
    let len = range.end - range.start;
    let body = match &open {
        Some(open) => Some(Arc::clone(open).body(range).await?),
        None => None,
    };
    let mut staged = multipart::stage(gateway, fs, &upload).await?;
    let body = (body, Some(len), PART_BYTES_MAX);
    let (md5, _) = receive(&mut staged, body, Digest::default(), None).await?;
    object.expect_unchanged(fs).await?;
    drop(open);
    let attr = multipart::keep(&mut staged, fs, &upload, number, &md5).await?;
    let result = CopyPartResult {
        e_tag: Some(strong(&md5)),
        last_modified: Some(metadata::last_modified(&attr)),
        ..CopyPartResult::default()
    };
    Ok(UploadPartCopyOutput { copy_part_result: Some(result), ..UploadPartCopyOutput::default() })
}
