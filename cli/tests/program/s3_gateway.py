"""What boto3 sees of `pando s3`: run by s3_gateway.rs with the address and the access keys."""

import hashlib
import http.client
import random
import socket
import sys
import urllib.error
import urllib.request

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

ADDRESS = sys.argv[1]


def connect(access, secret):
    return boto3.client(
        "s3",
        endpoint_url=f"http://{ADDRESS}",
        aws_access_key_id=access,
        aws_secret_access_key=secret,
        region_name="us-east-1",
        config=Config(signature_version="s3v4", retries={"max_attempts": 0}, s3={"addressing_style": "path"}),
    )


S3 = connect("writer", "secret-of-writer")


def fails(code, call, **arguments):
    """The call fails with this code, or this status where an answer has no body."""
    try:
        call(**arguments)
    except ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        assert code in (error.response["Error"]["Code"], status), (code, error)
        return
    raise AssertionError(f"{arguments} succeeded, and not {code}")


def get(bucket, key, **arguments):
    return S3.get_object(Bucket=bucket, Key=key, **arguments)["Body"].read()


def buckets():
    # Its links are there already: see s3_gateway.rs.
    S3.create_bucket(Bucket="second")
    fails("BucketAlreadyOwnedByYou", S3.create_bucket, Bucket="first")
    # Its permissions stay: see s3_gateway.rs.
    S3.put_object(Bucket="first", Key="private", Body=b"new")
    names = [bucket["Name"] for bucket in S3.list_buckets()["Buckets"]]
    assert "first" in names and "second" in names and ".trash" not in names, names
    S3.head_bucket(Bucket="first")
    fails(404, S3.head_bucket, Bucket="third")
    fails("NoSuchBucket", S3.put_object, Bucket="third", Key="a", Body=b"")
    S3.put_object(Bucket="second", Key="a/b", Body=b"x")
    fails("BucketNotEmpty", S3.delete_bucket, Bucket="second")
    S3.delete_object(Bucket="second", Key="a/b")
    upload = S3.create_multipart_upload(Bucket="second", Key="under way")["UploadId"]
    fails("BucketNotEmpty", S3.delete_bucket, Bucket="second")
    S3.upload_part(Bucket="second", Key="under way", UploadId=upload, PartNumber=1, Body=b"kept")
    S3.abort_multipart_upload(Bucket="second", Key="under way", UploadId=upload)
    S3.delete_bucket(Bucket="second")
    fails("NoSuchBucket", S3.list_objects_v2, Bucket="second")


def objects():
    for size in (0, 1, 70_000, 3_000_000):
        body = random.Random(size).randbytes(size)
        put = S3.put_object(Bucket="first", Key=f"dir/{size}", Body=body)
        assert put["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'
        assert get("first", f"dir/{size}") == body
    body = random.Random(3_000_000).randbytes(3_000_000)
    for first, last in ((0, 0), (5, 2_000_004), (2_999_999, 4_000_000)):
        part = S3.get_object(Bucket="first", Key="dir/3000000", Range=f"bytes={first}-{last}")
        assert part["Body"].read() == body[first : last + 1]
        assert part["ContentRange"] == f"bytes {first}-{min(last, 2_999_999)}/3000000"
        assert part["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert get("first", "dir/3000000", Range="bytes=-7") == body[-7:]
    fails("InvalidRange", get, bucket="first", key="dir/3000000", Range="bytes=3000000-")
    for wanted in ("bytes=-5", "bytes=-0", "bytes=0-", "bytes=0-5"):
        fails("InvalidRange", get, bucket="first", key="dir/0", Range=wanted)
        fails(416, S3.head_object, Bucket="first", Key="dir/0", Range=wanted)
    head = S3.head_object(Bucket="first", Key="dir/70000", Range="bytes=5-9")
    headers = head["ResponseMetadata"]["HTTPHeaders"]
    assert headers["content-range"] == "bytes 5-9/70000" and head["ContentLength"] == 5, headers
    fails("NoSuchKey", get, bucket="first", key="dir")
    fails("NoSuchKey", get, bucket="first", key="dir/1/below a file")
    fails("KeyConflict", S3.put_object, Bucket="first", Key="dir", Body=b"")
    fails("KeyConflict", S3.put_object, Bucket="first", Key="dir/1/below a file", Body=b"")


def metadata_and_tags():
    headers = dict(
        ContentType="text/x", CacheControl="no-store", ContentDisposition="attachment",
        ContentEncoding="gzip", ContentLanguage="de", Metadata={"colour": "red", "size": "9"},
    )
    S3.put_object(Bucket="first", Key="told", Body=b"x", Tagging="a=1&b=2%2F3", **headers)
    for found in (S3.head_object(Bucket="first", Key="told"), S3.get_object(Bucket="first", Key="told")):
        for name, value in headers.items():
            assert found[name] == value, (name, found)
    tags = {tag["Key"]: tag["Value"] for tag in S3.get_object_tagging(Bucket="first", Key="told")["TagSet"]}
    assert tags == {"a": "1", "b": "2/3"}, tags
    S3.put_object_tagging(Bucket="first", Key="told", Tagging={"TagSet": [{"Key": "c", "Value": "4"}]})
    assert S3.get_object_tagging(Bucket="first", Key="told")["TagSet"] == [{"Key": "c", "Value": "4"}]
    fails("MetadataTooLarge", S3.put_object, Bucket="first", Key="big", Metadata={"a": "x" * 3000})

    source = {"Bucket": "first", "Key": "told"}
    S3.copy_object(Bucket="first", Key="copies/one", CopySource=source)
    found = S3.head_object(Bucket="first", Key="copies/one")
    assert found["Metadata"] == headers["Metadata"] and found["ContentType"] == "text/x"
    assert S3.get_object_tagging(Bucket="first", Key="copies/one")["TagSet"][0]["Key"] == "c"
    S3.copy_object(Bucket="first", Key="told", CopySource=source, MetadataDirective="REPLACE",
                   Metadata={"colour": "blue"}, ContentType="text/y")
    found = S3.head_object(Bucket="first", Key="told")
    assert found["Metadata"] == {"colour": "blue"} and found["ContentType"] == "text/y"
    assert get("first", "told") == b"x"
    fails("InvalidRequest", S3.copy_object, Bucket="first", Key="told", CopySource=source)
    fails("PreconditionFailed", S3.copy_object, Bucket="first", Key="copies/two", CopySource=source,
          CopySourceIfMatch='"other"')
    S3.delete_object_tagging(Bucket="first", Key="told")
    assert S3.get_object_tagging(Bucket="first", Key="told")["TagSet"] == []


def conditional(client, name, value, **arguments):
    """A put with a header that this boto3 may be too old to know."""
    def add(request, **_):
        request.headers[name] = value
    client.meta.events.register("before-sign.s3.PutObject", add)
    try:
        return client.put_object(**arguments)
    finally:
        client.meta.events.unregister("before-sign.s3.PutObject", add)


def conditions():
    etag = S3.put_object(Bucket="first", Key="cond", Body=b"1")["ETag"]
    fails(304, get, bucket="first", key="cond", IfNoneMatch=etag)
    fails("PreconditionFailed", get, bucket="first", key="cond", IfMatch='"other"')
    assert get("first", "cond", IfMatch=etag) == b"1"
    modified = S3.head_object(Bucket="first", Key="cond")["LastModified"]
    fails(304, get, bucket="first", key="cond", IfModifiedSince=modified)
    at = dict(Bucket="first", Key="cond", Body=b"2")
    fails("PreconditionFailed", conditional, client=S3, name="If-None-Match", value="*", **at)
    fails("PreconditionFailed", conditional, client=S3, name="If-Match", value='"other"', **at)
    assert get("first", "cond") == b"1"
    conditional(S3, "If-Match", etag, **at)
    assert get("first", "cond") == b"2"
    conditional(S3, "If-None-Match", "*", Bucket="first", Key="cond-new", Body=b"3")
    fails("KeyConflict", conditional, client=S3, name="If-None-Match", value="*",
          Bucket="first", Key="dir", Body=b"")
    wrong = hashlib.md5(b"other").digest()
    import base64
    fails("BadDigest", S3.put_object, Bucket="first", Key="bad", Body=b"x",
          ContentMD5=base64.b64encode(wrong).decode())
    fails(404, S3.head_object, Bucket="first", Key="bad")
    S3.put_object(Bucket="first", Key="sum", Body=b"x", ChecksumAlgorithm="SHA256")
    found = S3.head_object(Bucket="first", Key="sum", ChecksumMode="ENABLED")
    assert found["ChecksumSHA256"] == base64.b64encode(hashlib.sha256(b"x").digest()).decode()


def multipart():
    body = random.Random(7).randbytes(20 << 20)
    at = dict(Bucket="first", Key="multi/part")
    upload = S3.create_multipart_upload(**at, Metadata={"a": "b"}, Tagging="t=1")["UploadId"]
    parts = []
    for number, start in enumerate(range(0, len(body), 6 << 20), start=1):
        piece = body[start : start + (6 << 20)]
        S3.upload_part(**at, UploadId=upload, PartNumber=number, Body=b"sent again")
        etag = S3.upload_part(**at, UploadId=upload, PartNumber=number, Body=piece)["ETag"]
        parts.append({"PartNumber": number, "ETag": etag})
    fails(404, S3.head_object, **at)
    listed = S3.list_parts(**at, UploadId=upload, MaxParts=2)
    assert [part["ETag"] for part in listed["Parts"]] == [part["ETag"] for part in parts[:2]]
    assert listed["IsTruncated"] and listed["NextPartNumberMarker"] == 2
    uploads = S3.list_multipart_uploads(Bucket="first")["Uploads"]
    assert [(one["Key"], one["UploadId"]) for one in uploads] == [("multi/part", upload)]

    def complete(chosen):
        return S3.complete_multipart_upload(**at, UploadId=upload, MultipartUpload={"Parts": chosen})
    fails("InvalidPartOrder", complete, chosen=parts[::-1])
    fails("InvalidPart", complete, chosen=[{"PartNumber": 1, "ETag": '"other"'}])
    etag = complete(parts)["ETag"]
    assert complete(parts)["ETag"] == etag, "the answer was lost, and the client asks again"
    md5s = b"".join(bytes.fromhex(part["ETag"].strip('"')) for part in parts)
    assert etag == f'"{hashlib.md5(md5s).hexdigest()}-{len(parts)}"', etag
    assert get("first", "multi/part") == body
    found = S3.head_object(**at)
    assert found["ETag"] == etag and found["Metadata"] == {"a": "b"}
    assert "Uploads" not in S3.list_multipart_uploads(Bucket="first")

    upload = S3.create_multipart_upload(Bucket="first", Key="multi/copy")["UploadId"]
    to = dict(Bucket="first", Key="multi/copy", UploadId=upload)
    part = S3.upload_part_copy(**to, PartNumber=1, CopySource=at, CopySourceRange="bytes=5-104")
    chosen = [{"PartNumber": 1, "ETag": part["CopyPartResult"]["ETag"]}]
    S3.complete_multipart_upload(**to, MultipartUpload={"Parts": chosen})
    assert get("first", "multi/copy") == body[5:105]

    upload = S3.create_multipart_upload(**at)["UploadId"]
    S3.upload_part(**at, UploadId=upload, PartNumber=1, Body=b"x")
    S3.abort_multipart_upload(**at, UploadId=upload)
    fails("NoSuchUpload", S3.list_parts, **at, UploadId=upload)
    fails("NoSuchUpload", S3.list_parts, **at, UploadId="../..")
    assert get("first", "multi/part") == body


def awkward_keys():
    rng = random.Random(3)
    names = ["a", "a-b", "a0", "a b", "ü", "日本", "+", "%2F", "&<>\"'", "a.", "...", "-", "~", "A",
             "x" * 200, "new\nline", "#?", "=", "\\", "\x7f", ".hidden", "*", "{}"]
    keys = set()
    while len(keys) < 300:
        keys.add("/".join(rng.choice(names) for _ in range(rng.randint(1, 4))))
    files = {key for key in keys if not any(other.startswith(key + "/") for other in keys)}
    directories = {"empty/", "a/marked/"}
    return sorted(files | directories, key=lambda key: key.encode())


def expected(keys, prefix="", delimiter="", after=""):
    lines = []
    for key in keys:
        if not key.startswith(prefix) or key.encode() <= after.encode():
            continue
        at = key.find(delimiter, len(prefix)) if delimiter else -1
        line = key if at < 0 else key[: at + len(delimiter)]
        if line != after and (not lines or lines[-1] != line):
            lines.append(line)
    return lines


def listed(bucket, page, version=2, **arguments):
    found, going = [], {}
    while True:
        call = S3.list_objects_v2 if version == 2 else S3.list_objects
        answer = call(Bucket=bucket, MaxKeys=page, **arguments, **going)
        lines = [one["Key"] for one in answer.get("Contents", [])]
        lines += [one["Prefix"] for one in answer.get("CommonPrefixes", [])]
        assert len(lines) <= page
        found += sorted(lines, key=lambda line: line.encode())
        if not answer["IsTruncated"]:
            return found
        if version == 2:
            going = {"ContinuationToken": answer["NextContinuationToken"]}
        else:
            going = {"Marker": answer["NextMarker"]}


def listings():
    S3.create_bucket(Bucket="keys")
    keys = awkward_keys()
    for key in keys:
        S3.put_object(Bucket="keys", Key=key, Body=b"" if key.endswith("/") else key.encode())
    assert listed("keys", 1000) == keys
    assert listed("keys", 7) == keys
    assert listed("keys", 64, version=1) == keys
    for prefix in ("", "a", "a/", "a/a", "ü/", "a/marked/", "x", "nothing"):
        for delimiter in ("", "/", "-", "a/"):
            arguments = {"Prefix": prefix, "Delimiter": delimiter}
            wanted = expected(keys, prefix, delimiter)
            assert listed("keys", 1000, **arguments) == wanted, (prefix, delimiter)
            assert listed("keys", 3 if len(wanted) < 30 else 50, **arguments) == wanted
    for after in ("a", "a/", "a/a", "a-b", "zzz", "日本/a", "ü/%2F"):
        for delimiter in ("", "/"):
            wanted = expected(keys, "", delimiter, after)
            assert listed("keys", 1000, StartAfter=after, Delimiter=delimiter) == wanted, after
    found = {one["Key"]: one for one in S3.list_objects_v2(Bucket="keys")["Contents"]}
    for key in keys[::9]:
        body = b"" if key.endswith("/") else key.encode()
        assert get("keys", key) == body, key
        assert found[key]["Size"] == len(body)
        assert found[key]["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'
    fails("InvalidArgument", S3.list_objects_v2, Bucket="keys", ContinuationToken="*")

    deleted = S3.delete_objects(Bucket="keys", Delete={"Objects": [
        {"Key": key} for key in keys + ["never there", "../up"]]})
    assert len(deleted["Deleted"]) == len(keys) + 1, deleted["Errors"]
    assert [error["Key"] for error in deleted["Errors"]] == ["../up"]
    assert listed("keys", 1000, Delimiter="/") == []
    S3.delete_bucket(Bucket="keys")


def many_keys():
    """A directory that is kept between pages."""
    S3.create_bucket(Bucket="many")
    names = [f"k{number:04}" for number in range(1100)]
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: S3.put_object(Bucket="many", Key=name, Body=b""), names))
    first = S3.list_objects_v2(Bucket="many", MaxKeys=500)
    assert len(first["Contents"]) == 500
    S3.put_object(Bucket="many", Key="k0500a", Body=b"")
    second = S3.list_objects_v2(Bucket="many", ContinuationToken=first["NextContinuationToken"])
    assert [one["Key"] for one in second["Contents"]][:3] == ["k0500", "k0500a", "k0501"]


def replaced_while_read():
    """An object that is put again and again is there all the time."""
    from concurrent.futures import ThreadPoolExecutor
    at = dict(Bucket="first", Key="again")
    bodies = [bytes([number]) * 100_000 for number in range(8)]
    etags = {f'"{hashlib.md5(body).hexdigest()}"': body for body in bodies}
    S3.put_object(**at, Body=bodies[0])
    with ThreadPoolExecutor(1) as pool:
        def write():
            for number in range(150):
                S3.put_object(**at, Body=bodies[number % len(bodies)])
        writing = pool.submit(write)
        while not writing.done():
            found = S3.get_object(**at)
            assert found["Body"].read() == etags[found["ETag"]]
            assert S3.head_object(**at)["ETag"] in etags
            one, = S3.list_objects_v2(Bucket="first", Prefix="again")["Contents"]
            assert one["ETag"] in etags, one
            copied = S3.copy_object(Bucket="first", Key="copied", CopySource=at)
            assert get("first", "copied") == etags[copied["CopyObjectResult"]["ETag"]]
        writing.result()


def raw(method, path):
    connection = http.client.HTTPConnection(ADDRESS)
    connection.request(method, path)
    answer = connection.getresponse()
    return answer.status, answer.read()


def attacks():
    for key in ("../first/told", "a/../../etc", "a//b", "/a", "./a", "a/.", ".pando-s3/x", ".pando-s3"):
        fails("InvalidArgument", S3.put_object, Bucket="first", Key=key, Body=b"")
        fails("InvalidArgument", get, bucket="first", key=key)
        fails("InvalidArgument", S3.delete_object, Bucket="first", Key=key)
    fails("InvalidArgument", S3.copy_object, Bucket="first", Key="stolen",
          CopySource={"Bucket": "first", "Key": "../first/told"})
    fails("KeyTooLongError", S3.put_object, Bucket="first", Key="x" * 256, Body=b"")
    # Links that a mount has made: see s3_gateway.rs.
    fails("NoSuchKey", get, bucket="first", key="link")
    fails("NoSuchKey", get, bucket="first", key="link-dir/secret")
    fails("KeyConflict", S3.put_object, Bucket="first", Key="link-dir/new", Body=b"")
    S3.delete_object(Bucket="first", Key="link-dir/secret")
    assert not [key for key in listed("first", 1000) if key.startswith(("link", ".pando"))]

    assert raw("GET", "/first/told")[0] == 403
    assert raw("GET", "/")[0] == 403
    wrong = connect("writer", "secret-of-nobody")
    fails("SignatureDoesNotMatch", wrong.list_buckets)
    fails("InvalidAccessKeyId", connect("nobody", "secret-of-nobody").list_buckets)
    for reader in (connect("reader", "secret-of-reader"), connect("refused", "secret-of-refused")):
        assert reader.get_object(Bucket="first", Key="told")["Body"].read() == b"x"
        fails("AccessDenied", reader.put_object, Bucket="first", Key="told", Body=b"y")
        fails("AccessDenied", reader.delete_object, Bucket="first", Key="told")
        fails("AccessDenied", reader.create_bucket, Bucket="fourth")
    fails("NotImplemented", S3.put_bucket_policy, Bucket="first", Policy="{}")
    fails("NotImplemented", S3.put_object, Bucket="first", Key="acl", ACL="public-read")


def presigned():
    at = {"Bucket": "first", "Key": "pre/signed"}
    url = S3.generate_presigned_url("put_object", Params=at, ExpiresIn=60)
    urllib.request.urlopen(urllib.request.Request(url, data=b"by url", method="PUT"))
    url = S3.generate_presigned_url("get_object", Params=at, ExpiresIn=60)
    assert urllib.request.urlopen(url).read() == b"by url"
    for bad in (url.replace("pre/signed", "told"), url[:-1] + ("0" if url[-1] != "0" else "1")):
        try:
            urllib.request.urlopen(bad)
        except urllib.error.HTTPError as error:
            assert error.code == 403
        else:
            raise AssertionError(bad)


def cut_uploads():
    """An upload that ends in the middle leaves nothing, and what was there stays."""
    S3.put_object(Bucket="first", Key="cut", Body=b"before")
    for key in ("cut", "cut-new"):
        url = S3.generate_presigned_url("put_object", Params={"Bucket": "first", "Key": key})
        path = url.split(ADDRESS, 1)[1]
        host, port = ADDRESS.split(":")
        sender = socket.create_connection((host, int(port)))
        head = f"PUT {path} HTTP/1.1\r\nHost: {ADDRESS}\r\nContent-Length: 1000000\r\n\r\n"
        sender.sendall(head.encode() + b"x" * 300_000)
        sender.close()
    assert get("first", "cut") == b"before"
    fails(404, S3.head_object, Bucket="first", Key="cut-new")


for test in (buckets, objects, metadata_and_tags, conditions, multipart, listings, many_keys,
             replaced_while_read, attacks, presigned, cut_uploads):
    test()
    print("passed", test.__name__, flush=True)
