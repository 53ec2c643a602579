package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// Lists a bucket in pages of 1,000 keys: the time of waiting for answers, and the number of keys. The
// client looks only for the end of a page.
func listAll(address, bucket string) (waited time.Duration, keys int, err error) {
	credentials := aws.Credentials{AccessKeyID: accessKey, SecretAccessKey: secretKey}
	token := ""
	for {
		query := url.Values{"list-type": {"2"}, "X-Amz-Expires": {"3600"}}
		if token != "" {
			query.Set("continuation-token", token)
		}
		request, err := http.NewRequest("GET", "http://"+address+"/"+bucket+"?"+query.Encode(), nil)
		if err != nil {
			return waited, keys, err
		}
		page, _, err := v4.NewSigner().PresignHTTP(context.Background(), credentials, request,
			"UNSIGNED-PAYLOAD", "s3", "us-east-1", time.Now())
		if err != nil {
			return waited, keys, err
		}
		begin := time.Now()
		answer, err := http.Get(page)
		if err != nil {
			return waited, keys, err
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		waited += time.Since(begin)
		if err != nil || answer.StatusCode != http.StatusOK {
			return waited, keys, fmt.Errorf("%s %w: %.200s", answer.Status, err, body)
		}
		keys += bytes.Count(body, []byte("<Contents>"))
		_, rest, more := bytes.Cut(body, []byte("<NextContinuationToken>"))
		if !more {
			return waited, keys, nil
		}
		next, _, _ := bytes.Cut(rest, []byte("</NextContinuationToken>"))
		token = string(next)
	}
}
