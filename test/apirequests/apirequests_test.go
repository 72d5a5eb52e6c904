// SPDX-License-Identifier: Apache-2.0

package apirequests

import (
	"maps"
	"testing"
)

const text = `# HELP apiserver_request_total Counter of apiserver requests.
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",component="",dry_run="",resource="",subresource="/healthz",verb="GET"} 9
apiserver_request_total{code="200",dry_run="",resource="",subresource="",verb="GET"} 4
apiserver_request_total{code="200",dry_run="",resource="resourceclaims",subresource="",verb="GET"} 7
apiserver_request_total{code="200",dry_run="",resource="resourceclaimtemplates",subresource="",verb="GET"} 8
apiserver_request_total{code="404",dry_run="",resource="resourceclaims",subresource="",verb="GET"} 2
apiserver_request_total{code="200",dry_run="",resource="resourceclaims",subresource="status",verb="PATCH"} 1e+06
apiserver_request_total{code="201",dry_run="",resource="pods",subresource="",verb="POST"} 5
apiserver_request_total{code="201",dry_run="All",resource="pods",subresource="",verb="POST"} 3
apiserver_request_total{code="409",dry_run="",resource="pods",subresource="",verb="POST"} 1
# TYPE apiserver_request_total_other counter
apiserver_request_total_other{resource="pods",verb="POST"} 50
# TYPE apiserver_admission_webhook_fail_open_count counter
apiserver_admission_webhook_fail_open_count{name="ranks.example.com",type="admit"} 3
apiserver_admission_webhook_fail_open_count{name="ranks.example.com",type="validating"} 4
apiserver_admission_webhook_fail_open_count{name="ranks.example.com.other",type="admit"} 50
`

func TestCounts(t *testing.T) {
	got, err := parse([]byte(text))
	want := Counts{"GET //healthz": 9, "GET ": 4, "GET resourceclaims": 7, "GET resourceclaims failed": 2,
		"GET resourceclaimtemplates": 8, "PATCH resourceclaims/status": 1000000, "POST pods": 5,
		"POST pods dry run": 3, "POST pods failed": 1}
	if err != nil || !maps.Equal(got, want) {
		t.Fatalf("got %v and error %v, want %v", got, err, want)
	}
	for what, row := range map[string]struct{ got, want int }{
		"stored pods and claims":       {got.Writes("pods", "resourceclaims"), 5},
		"a subresource":                {got.Writes("resourceclaims/status"), 1000000},
		"all reads of claims":          {got.Of("resourceclaims", "GET"), 9},
		"two verbs, with subresources": {got.Of("resourceclaims", "GET", "PATCH"), 1000009},
		"none":                         {got.Of("claims", "GET"), 0},
		"later":                        {got.Since(Counts{"GET resourceclaims": 6})["GET resourceclaims"], 1},
		"nothing new":                  {len(got.Since(got)), 0},
	} {
		if row.got != row.want {
			t.Errorf("%s: got %d, want %d", what, row.got, row.want)
		}
	}
	if _, err := parse([]byte("a much\n")); err == nil {
		t.Error("got no error of a value that is no number")
	}
}

func TestFailedOpen(t *testing.T) {
	for webhook, want := range map[string]int{"ranks.example.com": 7, "ranks.example.com.other": 50, "ranks": 0} {
		if got, err := failedOpen([]byte(text), webhook); err != nil || got != want {
			t.Errorf("%s: got %d and error %v, want %d", webhook, got, err, want)
		}
	}
}
