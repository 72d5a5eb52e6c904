// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
)

// statement is an in-toto statement with SLSA provenance 1.0: slsa.dev/spec/v1.0/provenance. Nobody has signed it.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []subject  `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     provenance `json:"predicate"`
}

type subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

type provenance struct {
	BuildDefinition buildDefinition `json:"buildDefinition"`
	RunDetails      runDetails      `json:"runDetails"`
}

type buildDefinition struct {
	BuildType            string            `json:"buildType"`
	ExternalParameters   map[string]string `json:"externalParameters"`
	InternalParameters   map[string]string `json:"internalParameters"`
	ResolvedDependencies []resource        `json:"resolvedDependencies"`
}

type resource struct {
	URI    string            `json:"uri"`
	Digest map[string]string `json:"digest"`
}

type runDetails struct {
	Builder struct {
		ID string `json:"id"`
	} `json:"builder"`
}

const repository = "https://github.com/gpudra/gpu-dra-driver"

// source is the checked-out commit.
type source struct {
	commit string
	time   string // of the commit, RFC 3339 in UTC: a build at another time has the same
	// changed says that files differ from the commit. Then the result cannot be built again from it.
	changed bool
	notes   []byte // of the release
}

func readSource(ctx context.Context) (source, error) {
	var s source
	var status string
	for _, git := range []struct {
		into *string
		args []string
	}{
		{&s.commit, []string{"rev-parse", "HEAD"}},
		{&s.time, []string{"log", "-1", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", "--format=%cd"}},
		{&status, []string{"status", "--porcelain"}},
	} {
		cmd := exec.CommandContext(ctx, "git", git.args...)
		cmd.Env = append(cmd.Environ(), "TZ=UTC")
		output, err := cmd.Output()
		if err != nil {
			return source{}, fmt.Errorf("git %s: %w", strings.Join(git.args, " "), err)
		}
		*git.into = strings.TrimSpace(string(output))
	}
	s.changed = status != ""
	return s, nil
}

// newStatement says from what the subjects were built, and how.
func newStatement(subjects []subject, s source, version, registry string) statement {
	p := provenance{BuildDefinition: buildDefinition{
		BuildType:          repository + "/blob/main/deployments/container",
		ExternalParameters: map[string]string{"VERSION": version, "REGISTRY": registry},
		InternalParameters: map[string]string{"go": runtime.Version(), "workingTreeChanged": fmt.Sprint(s.changed)},
		ResolvedDependencies: []resource{{"git+" + repository + "@" + s.commit,
			map[string]string{"gitCommit": s.commit}}},
	}}
	p.RunDetails.Builder.ID = repository + "/blob/main/Makefile#dist"
	return statement{"https://in-toto.io/Statement/v1", subjects, "https://slsa.dev/provenance/v1", p}
}
