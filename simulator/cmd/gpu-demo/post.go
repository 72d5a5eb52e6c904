// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// postSlowly does the same as post, but sends the first byte and never the rest.
func postSlowly(ctx context.Context, url, body string, out io.Writer) error {
	never, hold := io.Pipe()
	defer hold.Close()
	return post(ctx, url, body, io.MultiReader(strings.NewReader(body[:1]), never), out)
}

// post sends JSON to a server whose certificate may be of anybody, as a program would that must not be there.
func post(ctx context.Context, url, body string, send io.Reader, out io.Writer) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, send)
	if err != nil {
		return err
	}
	r.ContentLength = int64(len(body))
	r.Header.Set("Content-Type", "application/json")
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		InsecureSkipVerify: true}}} //nolint:gosec // what it sends is worth nothing
	answer, err := c.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	fmt.Fprintf(out, "%s\n%s\n", answer.Status, text)
	return err
}
