//! The calls of S3, one after the other: each finds its session and bucket, and hands on. What is
//! not here, `s3s` answers with `NotImplemented`.

use std::sync::Arc;

use base::FsError;
use client::Error;
use s3s::{
    S3, S3ErrorCode, S3Request, S3Response, S3Result,
    auth::{S3Auth, SecretKey},
    dto::*,
};

use crate::{
    commit::{self, Expected, Wanted},
    error::{invalid, not_implemented, of, of_object},
    gateway::Gateway,
    key::{self, Key},
    list,
    metadata::{self, Headers, TAGS},
    multipart, read, tree,
    walk::Query,
    write::{self, Extras},
};

/// The gateway, as `s3s` calls it.
pub(crate) struct Service(pub(crate) Arc<Gateway>);

#[async_trait::async_trait]
impl S3Auth for Service {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        self.0.secret_key(access_key)
    }
}

fn answer<T>(output: T) -> S3Result<S3Response<T>> {
    Ok(S3Response::new(output))
}

#[async_trait::async_trait]
impl S3 for Service {
    async fn list_buckets(
        &self,
        req: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        let fs = self.0.reading(req.credentials.as_ref()).await?;
        let input = req.input;
        let prefix = input.prefix.clone().unwrap_or_default();
        let after = input.continuation_token.unwrap_or_default();
        let mut buckets = self.0.buckets(&fs).await?;
        buckets.retain(|(name, ..)| name.starts_with(&prefix) && *name > after);
        let limit = input.max_buckets.map_or(Ok(usize::MAX), usize::try_from);
        let limit = limit.map_err(|_| invalid("max-buckets must not be negative"))?;
        let truncated = limit > 0 && buckets.len() > limit;
        buckets.truncate(limit);
        let last = buckets.last().map(|(name, ..)| name.clone()).filter(|_| truncated);
        let bucket = |(name, _, made)| Bucket {
            creation_date: Some(metadata::timestamp(made)),
            name: Some(name),
            ..Bucket::default()
        };
        answer(ListBucketsOutput {
            buckets: Some(buckets.into_iter().map(bucket).collect()),
            continuation_token: last,
            prefix: input.prefix,
            ..ListBucketsOutput::default()
        })
    }

    async fn create_bucket(
        &self,
        req: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        let fs = self.0.writing(req.credentials.as_ref()).await?;
        let input = req.input;
        let private = input.acl.as_ref().is_none_or(|acl| acl.as_str() == BucketCannedACL::PRIVATE);
        let locked = input.object_lock_enabled_for_bucket == Some(true);
        Extras { private, locked, ..Extras::default() }.check()?;
        let told = |error: Error| match error {
            Error::Fs(FsError::Exists) => S3ErrorCode::BucketAlreadyOwnedByYou.into(),
            error => of(&error, S3ErrorCode::NoSuchBucket),
        };
        let name = key::bucket(&input.bucket)?;
        let root = fs.dir(&self.0.settings.root).await.map_err(told)?;
        fs.mkdir(&root, &name, tree::DIR_MODE).await.map_err(told)?;
        fs.sync_dir(&root).await.map_err(told)?;
        answer(CreateBucketOutput { location: Some(format!("/{}", input.bucket)) })
    }

    async fn delete_bucket(
        &self,
        req: S3Request<DeleteBucketInput>,
    ) -> S3Result<S3Response<DeleteBucketOutput>> {
        let fs = self.0.writing(req.credentials.as_ref()).await?;
        commit::delete_bucket(&self.0, &fs, &req.input.bucket).await?;
        answer(DeleteBucketOutput::default())
    }

    async fn head_bucket(
        &self,
        req: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        let fs = self.0.reading(req.credentials.as_ref()).await?;
        self.0.bucket(&fs, &req.input.bucket).await?;
        answer(HeadBucketOutput::default())
    }

    async fn get_bucket_location(
        &self,
        req: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        let fs = self.0.reading(req.credentials.as_ref()).await?;
        self.0.bucket(&fs, &req.input.bucket).await?;
        answer(GetBucketLocationOutput::default())
    }

    async fn get_bucket_versioning(
        &self,
        req: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<S3Response<GetBucketVersioningOutput>> {
        let fs = self.0.reading(req.credentials.as_ref()).await?;
        self.0.bucket(&fs, &req.input.bucket).await?;
        answer(GetBucketVersioningOutput::default())
    }

    async fn get_object(
        &self,
        req: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let fs = self.0.reading(req.credentials.as_ref()).await?;
        answer(read::get(&self.0, &fs, req.input).await?)
    }

    async fn head_object(
        &self,
        req: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let fs = self.0.reading(req.credentials.as_ref()).await?;
        let (output, tags) = read::head(&self.0, &fs, req.input).await?;
        let mut response = S3Response::new(output);
        if let Some(tags) = tags {
            response.headers.insert("x-amz-tagging-count", tags.into());
        }
        Ok(response)
    }

    async fn put_object(
        &self,
        req: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let fs = self.0.writing(req.credentials.as_ref()).await?;
        answer(write::put(&self.0, &fs, req).await?)
    }

    async fn post_object(
        &self,
        _req: S3Request<PostObjectInput>,
    ) -> S3Result<S3Response<PostObjectOutput>> {
        Err(not_implemented("forms of browsers are not supported"))
    }

    async fn copy_object(
        &self,
        req: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        let fs = self.0.writing(req.credentials.as_ref()).await?;
        answer(write::copy(&self.0, &fs, req.input).await?)
    }

    async fn delete_object(
        &self,
        req: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let fs = self.0.writing(req.credentials.as_ref()).await?;
        let input = req.input;
        read::refuse(input.version_id.as_deref(), false)?;
        let bucket = self.0.bucket(&fs, &input.bucket).await?;
        let key = Key::parse(&input.key)?;
        let expected = Expected {
            etag: input.if_match,
            size: input.if_match_size,
            modified: input.if_match_last_modified_time,
        };
        commit::delete(&self.0, &fs, (&bucket, &key), &expected).await?;
        answer(DeleteObjectOutput::default())
    }

    async fn delete_objects(
        &self,
        req: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let fs = self.0.writing(req.credentials.as_ref()).await?;
        let input = req.input;
        if input.delete.objects.len() > 1000 {
            return Err(S3ErrorCode::MalformedXML.into());
        }
        let bucket = self.0.bucket(&fs, &input.bucket).await?;
        let quiet = input.delete.quiet == Some(true);
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for object in input.delete.objects {
            let expected = Expected {
                etag: object.e_tag.clone().map(ETagCondition::ETag),
                size: object.size,
                modified: object.last_modified_time.clone(),
            };
            let removed = async {
                read::refuse(object.version_id.as_deref(), false)?;
                let key = Key::parse(&object.key)?;
                commit::delete(&self.0, &fs, (&bucket, &key), &expected).await
            };
            match removed.await {
                Ok(()) if quiet => {}
                Ok(()) => deleted
                    .push(DeletedObject { key: Some(object.key), ..DeletedObject::default() }),
                Err(error) => errors.push(s3s::dto::Error {
                    code: Some(error.code().as_str().to_owned()),
                    key: Some(object.key),
                    message: error.message().map(str::to_owned),
                    version_id: None,
                }),
            }
        }
        answer(DeleteObjectsOutput {
            deleted: Some(deleted),
            errors: Some(errors),
            ..DeleteObjectsOutput::default()
        })
    }

    async fn list_objects(
        &self,
        req: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        let fs = self.0.reading(req.credentials.as_ref()).await?;
        let session = self.0.session_id(req.credentials.as_ref())?;
        let input = req.input;
        let bucket = self.0.bucket(&fs, &input.bucket).await?;
        let max = list::keys_max(input.max_keys)?;
        let query = Query {
            prefix: input.prefix.clone().unwrap_or_default(),
            delimiter: input.delimiter.clone().unwrap_or_default(),
            after: input.marker.clone().unwrap_or_default(),
            limit: usize::try_from(max).unwrap_or(0),
        };
        let encoding = input.encoding_type.as_ref();
        let source = (&fs, session, &self.0.sorted);
        let sent = list::page(source, &bucket, &query, encoding).await?;
        let encoded = |text: String| list::encoded(&text, encoding);
        answer(ListObjectsOutput {
            name: Some(input.bucket),
            prefix: Some(encoded(query.prefix)),
            marker: Some(encoded(query.after)),
            max_keys: Some(max),
            is_truncated: Some(sent.next.is_some()),
            contents: Some(sent.objects),
            common_prefixes: Some(sent.prefixes),
            delimiter: input.delimiter.filter(|text| !text.is_empty()).map(encoded),
            next_marker: sent.next.map(encoded),
            encoding_type: input.encoding_type.clone(),
            ..ListObjectsOutput::default()
        })
    }

    async fn list_objects_v2(
        &self,
        req: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let fs = self.0.reading(req.credentials.as_ref()).await?;
        let session = self.0.session_id(req.credentials.as_ref())?;
        let input = req.input;
        let bucket = self.0.bucket(&fs, &input.bucket).await?;
        let max = list::keys_max(input.max_keys)?;
        let after = match &input.continuation_token {
            Some(token) => list::after_of(token)?,
            None => input.start_after.clone().unwrap_or_default(),
        };
        let query = Query {
            prefix: input.prefix.clone().unwrap_or_default(),
            delimiter: input.delimiter.clone().unwrap_or_default(),
            after,
            limit: usize::try_from(max).unwrap_or(0),
        };
        let encoding = input.encoding_type.as_ref();
        let source = (&fs, session, &self.0.sorted);
        let sent = list::page(source, &bucket, &query, encoding).await?;
        let encoded = |text: String| list::encoded(&text, encoding);
        let count = sent.objects.len() + sent.prefixes.len();
        answer(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(encoded(query.prefix)),
            max_keys: Some(max),
            key_count: i32::try_from(count).ok(),
            continuation_token: input.continuation_token,
            is_truncated: Some(sent.next.is_some()),
            next_continuation_token: sent.next.map(|next| list::token_of(&next)),
            contents: Some(sent.objects),
            common_prefixes: Some(sent.prefixes),
            delimiter: input.delimiter.filter(|text| !text.is_empty()).map(encoded),
            start_after: input.start_after.map(encoded),
            encoding_type: input.encoding_type.clone(),
            ..ListObjectsV2Output::default()
        })
    }

    /// Objects have one version each, which is called `null` as where versions were never kept.
    async fn list_object_versions(
        &self,
        req: S3Request<ListObjectVersionsInput>,
    ) -> S3Result<S3Response<ListObjectVersionsOutput>> {
        let fs = self.0.reading(req.credentials.as_ref()).await?;
        let session = self.0.session_id(req.credentials.as_ref())?;
        let input = req.input;
        let bucket = self.0.bucket(&fs, &input.bucket).await?;
        let max = list::keys_max(input.max_keys)?;
        let query = Query {
            prefix: input.prefix.clone().unwrap_or_default(),
            delimiter: input.delimiter.clone().unwrap_or_default(),
            after: input.key_marker.clone().unwrap_or_default(),
            limit: usize::try_from(max).unwrap_or(0),
        };
        let encoding = input.encoding_type.as_ref();
        let source = (&fs, session, &self.0.sorted);
        let sent = list::page(source, &bucket, &query, encoding).await?;
        let encoded = |text: String| list::encoded(&text, encoding);
        let null = || Some("null".to_owned());
        let version = |object: Object| ObjectVersion {
            e_tag: object.e_tag,
            is_latest: Some(true),
            key: object.key,
            last_modified: object.last_modified,
            size: object.size,
            storage_class: Some(ObjectVersionStorageClass::STANDARD.to_owned().into()),
            version_id: null(),
            ..ObjectVersion::default()
        };
        answer(ListObjectVersionsOutput {
            name: Some(input.bucket),
            prefix: Some(encoded(query.prefix)),
            key_marker: Some(encoded(query.after)),
            version_id_marker: input.version_id_marker,
            max_keys: Some(max),
            is_truncated: Some(sent.next.is_some()),
            versions: Some(sent.objects.into_iter().map(version).collect()),
            common_prefixes: Some(sent.prefixes),
            delimiter: input.delimiter.filter(|text| !text.is_empty()).map(encoded),
            next_version_id_marker: sent.next.as_ref().and_then(|_| null()),
            next_key_marker: sent.next.map(encoded),
            encoding_type: input.encoding_type.clone(),
            ..ListObjectVersionsOutput::default()
        })
    }

    async fn get_object_tagging(
        &self,
        req: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<S3Response<GetObjectTaggingOutput>> {
        let fs = self.0.reading(req.credentials.as_ref()).await?;
        let input = req.input;
        read::refuse(input.version_id.as_deref(), false)?;
        let object = read::object(&self.0, &fs, &input.bucket, &input.key).await?;
        answer(GetObjectTaggingOutput { tag_set: object.known.tags, version_id: None })
    }

    async fn put_object_tagging(
        &self,
        req: S3Request<PutObjectTaggingInput>,
    ) -> S3Result<S3Response<PutObjectTaggingOutput>> {
        let fs = self.0.writing(req.credentials.as_ref()).await?;
        let input = req.input;
        read::refuse(input.version_id.as_deref(), false)?;
        let tags = metadata::tags_to_bytes(&input.tagging.tag_set)?;
        let object = read::object(&self.0, &fs, &input.bucket, &input.key).await?;
        let node = &object.found.node;
        let set = match tags {
            Some(tags) => fs.setxattr(node, TAGS.as_bytes(), tags).await,
            None => fs.removexattr(node, TAGS.as_bytes()).await,
        };
        set.map_err(|error| of_object(&error))?;
        answer(PutObjectTaggingOutput::default())
    }

    async fn delete_object_tagging(
        &self,
        req: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
        let fs = self.0.writing(req.credentials.as_ref()).await?;
        let input = req.input;
        read::refuse(input.version_id.as_deref(), false)?;
        let object = read::object(&self.0, &fs, &input.bucket, &input.key).await?;
        let removed = fs.removexattr(&object.found.node, TAGS.as_bytes()).await;
        removed.map_err(|error| of_object(&error))?;
        answer(DeleteObjectTaggingOutput::default())
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let fs = self.0.writing(req.credentials.as_ref()).await?;
        let input = req.input;
        Extras {
            private: write::is_private(input.acl.as_ref()),
            storage_class: input.storage_class,
            encrypted: input.server_side_encryption.is_some()
                || input.ssekms_key_id.is_some()
                || input.sse_customer_key.is_some(),
            locked: input.object_lock_mode.is_some(),
        }
        .check()?;
        let bucket = self.0.bucket(&fs, &input.bucket).await?;
        let mut headers = Headers {
            content_type: input.content_type,
            content_encoding: input.content_encoding.and_then(write::without_chunks),
            content_disposition: input.content_disposition,
            content_language: input.content_language,
            cache_control: input.cache_control,
            website_redirect_location: input.website_redirect_location,
            ..Headers::default()
        };
        headers.set_expires(input.expires);
        headers.set_user(input.metadata)?;
        let tags = metadata::tags_of_header(input.tagging.as_deref().unwrap_or(""))?;
        let key = input.key.clone();
        let id = multipart::create(&self.0, &fs, &bucket, key, headers, &tags).await?;
        answer(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(id),
            ..CreateMultipartUploadOutput::default()
        })
    }

    async fn upload_part(
        &self,
        req: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        let fs = self.0.writing(req.credentials.as_ref()).await?;
        answer(write::upload_part(&self.0, &fs, req).await?)
    }

    async fn upload_part_copy(
        &self,
        req: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        let fs = self.0.writing(req.credentials.as_ref()).await?;
        answer(write::upload_part_copy(&self.0, &fs, req.input).await?)
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let fs = self.0.writing(req.credentials.as_ref()).await?;
        let input = req.input;
        let wanted = Wanted::new(input.if_match, input.if_none_match)?;
        let bucket = self.0.bucket(&fs, &input.bucket).await?;
        let parts = input.multipart_upload.and_then(|chosen| chosen.parts).unwrap_or_default();
        let at = (&bucket, input.key.as_str(), input.upload_id.as_str());
        let etag = multipart::complete(&self.0, &fs, at, parts, &wanted).await?;
        answer(CompleteMultipartUploadOutput {
            location: Some(format!("/{}/{}", input.bucket, input.key)),
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag: Some(metadata::strong(&etag)),
            ..CompleteMultipartUploadOutput::default()
        })
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let fs = self.0.writing(req.credentials.as_ref()).await?;
        let input = req.input;
        let bucket = self.0.bucket(&fs, &input.bucket).await?;
        let at = (&bucket, input.key.as_str(), input.upload_id.as_str());
        multipart::abort(&self.0, &fs, at).await?;
        answer(AbortMultipartUploadOutput::default())
    }

    async fn list_parts(
        &self,
        req: S3Request<ListPartsInput>,
    ) -> S3Result<S3Response<ListPartsOutput>> {
        let fs = self.0.reading(req.credentials.as_ref()).await?;
        let bucket = self.0.bucket(&fs, &req.input.bucket).await?;
        answer(multipart::list_parts(&self.0, &fs, &bucket, req.input).await?)
    }

    async fn list_multipart_uploads(
        &self,
        req: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        let fs = self.0.reading(req.credentials.as_ref()).await?;
        let bucket = self.0.bucket(&fs, &req.input.bucket).await?;
        answer(multipart::list_uploads(&fs, &bucket, req.input).await?)
    }
}
