// What the AWS SDK for Go sees of `pando s3`: run by s3_sdk.rs with the address of a gateway.
//
// All checks run twice: over plain HTTP, and through a server of TLS before the gateway. Over TLS
// the SDK sends bodies in chunks with their checksum in a trailer.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	tmtypes "github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
)

// One way to the gateway, and a bucket there.
type tester struct {
	context.Context
	s3     *s3.Client
	http   *http.Client
	bucket *string
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func expect(holds bool, facts ...any) {
	if !holds {
		panic(fmt.Sprint(facts...))
	}
}

// Fails unless err is an error of S3 with this code.
func fails[T any](code string, _ T, err error) {
	var known smithy.APIError
	expect(errors.As(err, &known), code, ": ", err)
	expect(known.ErrorCode() == code, code, ": ", known.ErrorCode(), ": ", known.ErrorMessage())
}

func client(endpoint, secret string, base *http.Client) *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint:     aws.String(endpoint),
		Credentials:      credentials.NewStaticCredentialsProvider("writer", secret, ""),
		HTTPClient:       base,
		Region:           "us-east-1",
		RetryMaxAttempts: 1,
		UsePathStyle:     true,
		// As in a configuration that the SDK loads from files.
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenSupported,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenSupported,
	})
}

func (t *tester) put(key string, body []byte) *s3.PutObjectOutput {
	input := &s3.PutObjectInput{Bucket: t.bucket, Key: &key, Body: bytes.NewReader(body)}
	return must(t.s3.PutObject(t, input))
}

func (t *tester) get(input *s3.GetObjectInput) []byte {
	input.Bucket = t.bucket
	input.ChecksumMode = types.ChecksumModeEnabled
	answer := must(t.s3.GetObject(t, input))
	defer answer.Body.Close()
	return must(io.ReadAll(answer.Body))
}

func contents(size int) []byte {
	body := make([]byte, size)
	rand.New(rand.NewSource(int64(size))).Read(body)
	return body
}

func (t *tester) objects() {
	for _, size := range []int{0, 1, 1000, 70_000, 3_000_000} {
		key := fmt.Sprintf("dir/%d", size)
		put := t.put(key, contents(size))
		expect(aws.ToString(put.ChecksumCRC32) != "", "the SDK's own checksum was not kept")
		expect(bytes.Equal(t.get(&s3.GetObjectInput{Key: &key}), contents(size)), key)
		head := must(t.s3.HeadObject(t, &s3.HeadObjectInput{
			Bucket: t.bucket, Key: &key, ChecksumMode: types.ChecksumModeEnabled,
		}))
		expect(*head.ContentLength == int64(size) && *head.ETag == *put.ETag, key)
		expect(aws.ToString(head.ChecksumCRC32) == *put.ChecksumCRC32, key)
	}
	key, body := "dir/70000", contents(70_000)
	for text, wanted := range map[string][]byte{
		"bytes=0-0": body[:1], "bytes=100-199": body[100:200],
		"bytes=69999-80000": body[69_999:], "bytes=-7": body[69_993:],
	} {
		found := t.get(&s3.GetObjectInput{Key: &key, Range: &text})
		expect(bytes.Equal(found, wanted), text)
	}
	_, err := t.s3.GetObject(t, &s3.GetObjectInput{
		Bucket: t.bucket, Key: &key, Range: aws.String("bytes=70000-"),
	})
	fails("InvalidRange", 0, err)
	for _, algorithm := range types.ChecksumAlgorithm("").Values() {
		_, err := t.s3.PutObject(t, &s3.PutObjectInput{
			Bucket: t.bucket, Key: &key, Body: bytes.NewReader(body), ChecksumAlgorithm: algorithm,
		})
		switch algorithm {
		case types.ChecksumAlgorithmCrc32, types.ChecksumAlgorithmCrc32c,
			types.ChecksumAlgorithmCrc64nvme, types.ChecksumAlgorithmSha1,
			types.ChecksumAlgorithmSha256:
			expect(err == nil, algorithm, ": ", err)
			expect(bytes.Equal(t.get(&s3.GetObjectInput{Key: &key}), body), algorithm)
		}
	}
}

func (t *tester) conditions() {
	key := "conditions"
	put := func(match, none *string) error {
		_, err := t.s3.PutObject(t, &s3.PutObjectInput{
			Bucket: t.bucket, Key: &key, Body: strings.NewReader("x"), IfMatch: match, IfNoneMatch: none,
		})
		return err
	}
	star, other := aws.String("*"), aws.String(`"00000000000000000000000000000000"`)
	expect(put(nil, star) == nil, "a new object")
	fails("PreconditionFailed", 0, put(nil, star))
	fails("PreconditionFailed", 0, put(other, nil))
	etag := t.put(key, []byte("y")).ETag
	expect(put(etag, nil) == nil, "the ETag that is there")
	etag = t.put(key, []byte("z")).ETag
	_, err := t.s3.GetObject(t, &s3.GetObjectInput{Bucket: t.bucket, Key: &key, IfMatch: other})
	fails("PreconditionFailed", 0, err)
	_, err = t.s3.GetObject(t, &s3.GetObjectInput{Bucket: t.bucket, Key: &key, IfNoneMatch: etag})
	fails("NotModified", 0, err)
	_, err = t.s3.DeleteObject(t, &s3.DeleteObjectInput{Bucket: t.bucket, Key: &key, IfMatch: other})
	fails("PreconditionFailed", 0, err)
}

type into struct{ bytes []byte }

func (i *into) WriteAt(piece []byte, at int64) (int, error) {
	return copy(i.bytes[at:], piece), nil
}

// Uploads of parts and downloads, by the SDK's manager of transfers.
func (t *tester) transfers() {
	manager := transfermanager.New(t.s3, func(options *transfermanager.Options) {
		options.PartSizeBytes, options.MultipartUploadThreshold = 5<<20, 6<<20
	})
	for _, size := range []int{1000, 12_000_000} {
		key, body := fmt.Sprintf("transfer/%d", size), contents(size)
		// The manager reads a body whose length it does not know.
		unknown := io.MultiReader(bytes.NewReader(body))
		sent := must(manager.UploadObject(t, &transfermanager.UploadObjectInput{
			Bucket: t.bucket, Key: &key, Body: unknown, Metadata: map[string]string{"colour": "red"},
		}))
		head := must(t.s3.HeadObject(t, &s3.HeadObjectInput{Bucket: t.bucket, Key: &key}))
		expect(*head.ETag == *sent.ETag && head.Metadata["colour"] == "red", key)
		expect(strings.HasSuffix(*sent.ETag, `-3"`) == (size > 6<<20), *sent.ETag)
		for _, kind := range []tmtypes.GetObjectType{tmtypes.GetObjectParts, tmtypes.GetObjectRanges} {
			found := into{make([]byte, size)}
			answer := must(manager.DownloadObject(t, &transfermanager.DownloadObjectInput{
				Bucket: t.bucket, Key: &key, WriterAt: &found,
			}, func(options *transfermanager.Options) { options.GetObjectType = kind }))
			expect(bytes.Equal(found.bytes, body), key, " ", kind)
			expect(*answer.ContentLength == int64(size), key, " ", kind)
			read := must(manager.GetObject(t, &transfermanager.GetObjectInput{
				Bucket: t.bucket, Key: &key,
			}, func(options *transfermanager.Options) { options.GetObjectType = kind }))
			expect(bytes.Equal(must(io.ReadAll(read.Body)), body), key, " ", kind)
		}
	}
	key, part := "transfer/12000000", aws.Int32(4)
	_, err := t.s3.GetObject(t, &s3.GetObjectInput{Bucket: t.bucket, Key: &key, PartNumber: part})
	fails("InvalidPart", 0, err)
	pages := s3.NewListMultipartUploadsPaginator(t.s3, &s3.ListMultipartUploadsInput{Bucket: t.bucket})
	for pages.HasMorePages() {
		expect(len(must(pages.NextPage(t)).Uploads) == 0, "an upload was left")
	}
}

func (t *tester) listings() {
	var wanted, folders []string
	for folder := range 3 {
		for name := range 20 {
			wanted = append(wanted, fmt.Sprintf("list/f%d/ü %02d", folder, name))
			t.put(wanted[len(wanted)-1], nil)
		}
		folders = append(folders, fmt.Sprintf("list/f%d/", folder))
	}
	list := func(page int32, delimiter *string) (keys, prefixes []string) {
		pages := s3.NewListObjectsV2Paginator(t.s3, &s3.ListObjectsV2Input{
			Bucket: t.bucket, Prefix: aws.String("list/"), Delimiter: delimiter, MaxKeys: &page,
		})
		for pages.HasMorePages() {
			answer := must(pages.NextPage(t))
			expect(len(answer.Contents)+len(answer.CommonPrefixes) <= int(page), "a page is too long")
			for _, object := range answer.Contents {
				keys = append(keys, *object.Key)
			}
			for _, prefix := range answer.CommonPrefixes {
				prefixes = append(prefixes, *prefix.Prefix)
			}
		}
		return keys, prefixes
	}
	for _, page := range []int32{1, 7, 20, 1000} {
		keys, prefixes := list(page, nil)
		expect(slices.Equal(keys, wanted) && prefixes == nil, page, keys)
		keys, prefixes = list(page, aws.String("/"))
		expect(keys == nil && slices.Equal(prefixes, folders), page, prefixes)
	}

	objects := []types.ObjectIdentifier{{Key: aws.String("list/never there")}}
	for _, key := range wanted {
		objects = append(objects, types.ObjectIdentifier{Key: &key})
	}
	deleted := must(t.s3.DeleteObjects(t, &s3.DeleteObjectsInput{
		Bucket: t.bucket, Delete: &types.Delete{Objects: objects},
	}))
	expect(len(deleted.Deleted) == len(objects) && len(deleted.Errors) == 0, deleted.Errors)
	keys, prefixes := list(1000, nil)
	expect(keys == nil && prefixes == nil, keys)
}

func (t *tester) tagsAndCopies() {
	key, copied := "tagged ü+", "copies/one"
	must(t.s3.PutObject(t, &s3.PutObjectInput{
		Bucket: t.bucket, Key: &key, Body: strings.NewReader("tagged"), Tagging: aws.String("a=1&b=2%2F"),
		ContentType: aws.String("text/x"), Metadata: map[string]string{"size": "9"},
	}))
	tags := func(key string) map[string]string {
		found := map[string]string{}
		input := &s3.GetObjectTaggingInput{Bucket: t.bucket, Key: &key}
		for _, tag := range must(t.s3.GetObjectTagging(t, input)).TagSet {
			found[*tag.Key] = *tag.Value
		}
		return found
	}
	expect(tags(key)["a"] == "1" && tags(key)["b"] == "2/", tags(key))
	source := aws.String(*t.bucket + "/" + url.PathEscape(key))
	must(t.s3.CopyObject(t, &s3.CopyObjectInput{Bucket: t.bucket, Key: &copied, CopySource: source}))
	expect(string(t.get(&s3.GetObjectInput{Key: &copied})) == "tagged", "a copy")
	head := must(t.s3.HeadObject(t, &s3.HeadObjectInput{Bucket: t.bucket, Key: &copied}))
	expect(*head.ContentType == "text/x" && head.Metadata["size"] == "9", head.Metadata)
	expect(len(tags(copied)) == 2, tags(copied))
	must(t.s3.PutObjectTagging(t, &s3.PutObjectTaggingInput{
		Bucket: t.bucket, Key: &key, Tagging: &types.Tagging{
			TagSet: []types.Tag{{Key: aws.String("c"), Value: aws.String("3")}},
		},
	}))
	expect(len(tags(key)) == 1 && tags(key)["c"] == "3", tags(key))
	must(t.s3.DeleteObjectTagging(t, &s3.DeleteObjectTaggingInput{Bucket: t.bucket, Key: &key}))
	expect(len(tags(key)) == 0, tags(key))
}

func (t *tester) presigned() {
	signer, key := s3.NewPresignClient(t.s3), "pre signed"
	send := func(method, url string, header http.Header, body string) (int, string) {
		request := must(http.NewRequest(method, url, strings.NewReader(body)))
		request.Header = header.Clone()
		answer := must(t.http.Do(request))
		defer answer.Body.Close()
		return answer.StatusCode, string(must(io.ReadAll(answer.Body)))
	}
	put := must(signer.PresignPutObject(t, &s3.PutObjectInput{Bucket: t.bucket, Key: &key}))
	status, said := send("PUT", put.URL, put.SignedHeader, "by a URL")
	expect(status == 200, status, said)
	get := must(signer.PresignGetObject(t, &s3.GetObjectInput{Bucket: t.bucket, Key: &key}))
	status, said = send("GET", get.URL, get.SignedHeader, "")
	expect(status == 200 && said == "by a URL", status, said)
	status, _ = send("DELETE", get.URL, get.SignedHeader, "")
	expect(status == 403, status, ": the signature is of another method")
}

func (t *tester) refusals() {
	_, err := t.s3.GetObject(t, &s3.GetObjectInput{Bucket: t.bucket, Key: aws.String("none")})
	var missing *types.NoSuchKey
	expect(errors.As(err, &missing), err)
	_, err = t.s3.HeadObject(t, &s3.HeadObjectInput{Bucket: t.bucket, Key: aws.String("none")})
	var notFound *types.NotFound
	expect(errors.As(err, &notFound), err)
	_, err = t.s3.ListObjectsV2(t, &s3.ListObjectsV2Input{Bucket: aws.String("no-bucket")})
	var noBucket *types.NoSuchBucket
	expect(errors.As(err, &noBucket), err)
	_, err = t.s3.CreateBucket(t, &s3.CreateBucketInput{Bucket: t.bucket})
	var owned *types.BucketAlreadyOwnedByYou
	expect(errors.As(err, &owned), err)
	_, err = t.s3.DeleteBucket(t, &s3.DeleteBucketInput{Bucket: t.bucket})
	fails("BucketNotEmpty", 0, err)
	_, err = t.s3.GetBucketPolicy(t, &s3.GetBucketPolicyInput{Bucket: t.bucket})
	fails("NotImplemented", 0, err)
	wrong := client(*t.s3.Options().BaseEndpoint, "secret-of-nobody", t.http)
	_, err = wrong.ListBuckets(t, &s3.ListBucketsInput{})
	fails("SignatureDoesNotMatch", 0, err)
}

func (t *tester) run(way string) {
	must(t.s3.CreateBucket(t, &s3.CreateBucketInput{Bucket: t.bucket}))
	must(t.s3.HeadBucket(t, &s3.HeadBucketInput{Bucket: t.bucket}))
	for _, check := range []struct {
		name string
		run  func()
	}{
		{"objects", t.objects}, {"conditions", t.conditions}, {"transfers", t.transfers},
		{"listings", t.listings}, {"tags and copies", t.tagsAndCopies}, {"presigned", t.presigned},
		{"refusals", t.refusals},
	} {
		check.run()
		fmt.Println("passed", check.name, "over", way)
	}
}

func main() {
	endpoint := "http://" + os.Args[1]
	plain := &tester{context.Background(), client(endpoint, "secret-of-writer", http.DefaultClient), http.DefaultClient,
		aws.String("go-plain")}
	plain.run("HTTP")

	var chunked atomic.Int64
	proxy := httputil.NewSingleHostReverseProxy(must(url.Parse(endpoint)))
	before := httptest.NewTLSServer(http.HandlerFunc(func(to http.ResponseWriter, request *http.Request) {
		if request.Header.Get("X-Amz-Content-Sha256") == "STREAMING-UNSIGNED-PAYLOAD-TRAILER" {
			chunked.Add(1)
		}
		proxy.ServeHTTP(to, request)
	}))
	defer before.Close()
	tls := before.Client()
	secure := &tester{context.Background(), client(before.URL, "secret-of-writer", tls), tls, aws.String("go-tls")}
	secure.run("TLS")
	expect(chunked.Load() > 0, "the SDK sent no body in chunks with a trailer")
}
