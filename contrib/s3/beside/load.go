package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

const (
	accessKey = "accesskey"
	secretKey = "secret-of-accesskey"
	bucket    = "bucket"
	listed    = "listed"
	// Connections that are kept open, each with a thread of its own.
	connections = 8
	timeout     = 30 * time.Second
)

// A request as bytes, signed before the clock runs.
func signed(address, method, path string, body []byte) ([]byte, error) {
	request, err := http.NewRequest(method, "http://"+address+path+"?X-Amz-Expires=86400", nil)
	if err != nil {
		return nil, err
	}
	credentials := aws.Credentials{AccessKeyID: accessKey, SecretAccessKey: secretKey}
	url, _, err := v4.NewSigner().PresignHTTP(context.Background(), credentials, request,
		"UNSIGNED-PAYLOAD", "s3", "us-east-1", time.Now())
	if err != nil {
		return nil, err
	}
	var bytes bytes.Buffer
	fmt.Fprintf(&bytes, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, url[len("http://"+address):], address)
	if method == "PUT" {
		fmt.Fprintf(&bytes, "Content-Length: %d\r\n\r\n%s", len(body), body)
	} else {
		bytes.WriteString("\r\n")
	}
	return bytes.Bytes(), nil
}

// Sends a request and reads its answer; the body is in `into`, as far as that is long enough.
func ask(connection net.Conn, answers *bufio.Reader, request, into []byte) (int, error) {
	if err := connection.SetDeadline(time.Now().Add(timeout)); err != nil {
		return 0, err
	}
	if _, err := connection.Write(request); err != nil {
		return 0, err
	}
	line, err := answers.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if len(line) < 12 || string(line[9:12]) != "200" {
		rest, _ := answers.Peek(answers.Buffered())
		return 0, fmt.Errorf("%s%s", line, rest)
	}
	length := 0
	for {
		if line, err = answers.ReadSlice('\n'); err != nil {
			return 0, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		if bytes.EqualFold(name, []byte("content-length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return 0, err
			}
		}
		if bytes.EqualFold(name, []byte("transfer-encoding")) {
			return 0, errors.New("the answer is chunked")
		}
	}
	if length > len(into) {
		return 0, errors.New("the answer is longer than an object")
	}
	_, err = io.ReadFull(answers, into[:length])
	return length, err
}

// What a turn came to.
type rate struct {
	perSecond float64
	// Latencies.
	median, p99 time.Duration
}

// Sends all requests over connections that are open; each answer to a read must have `body`.
func load(address string, requests [][]byte, body []byte, reads bool) (rate, error) {
	type worker struct {
		connection net.Conn
		answers    *bufio.Reader
	}
	workers := make([]worker, connections)
	for at := range workers {
		connection, err := net.Dial("tcp", address)
		if err != nil {
			return rate{}, err
		}
		defer connection.Close()
		workers[at] = worker{connection, bufio.NewReaderSize(connection, 16<<10)}
	}
	latencies := make([]time.Duration, len(requests))
	failures := make([]error, connections)
	var group sync.WaitGroup
	begin := time.Now()
	for at, worker := range workers {
		group.Go(func() {
			found := make([]byte, len(body)+1)
			for next := at; next < len(requests); next += connections {
				sent := time.Now()
				length, err := ask(worker.connection, worker.answers, requests[next], found)
				latencies[next] = time.Since(sent)
				if err == nil && reads && !bytes.Equal(found[:length], body) {
					err = errors.New("an object has other contents")
				}
				if err != nil {
					failures[at] = err
					return
				}
			}
		})
	}
	group.Wait()
	seconds := time.Since(begin).Seconds()
	if err := errors.Join(failures...); err != nil {
		return rate{}, err
	}
	slices.Sort(latencies)
	return rate{
		perSecond: float64(len(requests)) / seconds,
		median:    latencies[len(latencies)/2],
		p99:       latencies[len(latencies)*99/100],
	}, nil
}

// Makes the bucket.
func makeBucket(address, bucket string) error {
	request, err := http.NewRequest("PUT", "http://"+address+"/"+bucket, nil)
	if err != nil {
		return err
	}
	empty := sha256.Sum256(nil)
	sum := hex.EncodeToString(empty[:])
	request.Header.Set("X-Amz-Content-Sha256", sum)
	credentials := aws.Credentials{AccessKeyID: accessKey, SecretAccessKey: secretKey}
	err = v4.NewSigner().SignHTTP(context.Background(), credentials, request, sum, "s3", "us-east-1",
		time.Now())
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(answer.Body)
		return fmt.Errorf("making a bucket: %s %s", answer.Status, said)
	}
	return nil
}
