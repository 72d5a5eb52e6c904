// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/nodeconfig"
)

const (
	// configLabel is the label of a Node object that names its node configuration.
	configLabel = "gpu.nvidia.com/node-config"
	// devicePluginLabel is what NVIDIA's device plugin has for the same.
	devicePluginLabel = "nvidia.com/device-plugin.config"
	// defaultConfig is the node configuration of a node without labels. It need not exist.
	defaultConfig = "default"

	// labelPeriod is how often the labels of the node are read, from the API server's cache: 50 requests a second of 1,000 nodes.
	labelPeriod = 20 * time.Second
	// labelTimeout is how long reading them may keep the machine from being looked at.
	labelTimeout = 5 * time.Second
)

// configSource is where the node configuration comes from: the one file of a directory that a label of the node names. What is wrong
// with it is told once, while the last good one stays in force.
type configSource struct {
	dir    string // empty: every GPU has its default
	labels func(ctx context.Context) (map[string]string, error)
	event  func(e Event, format string, args ...any)

	labelled map[string]string // as last read; nil: never
	expires  time.Time         // when they are to be read again
	parsed   parsed            // of the text that was read last
	inForce  *parsed           // the last good one; nil: there has been none
	said     map[string]string // the last that was told of each kind
}

// configText is the text of a node configuration. The zero value says that there is none.
type configText struct{ name, text string }

// parsed is what became of a text.
type parsed struct {
	configText
	config nodeconfig.Config
	err    error
}

func newConfigSource(c Config, r *reporter) *configSource {
	return &configSource{
		dir:    c.NodeConfigs,
		labels: func(ctx context.Context) (map[string]string, error) { return nodeLabels(ctx, c.Client, c.NodeName) },
		event:  r.machine,
		said:   map[string]string{},
	}
}

// nodeLabels reads the labels of a node, from the API server's cache.
func nodeLabels(ctx context.Context, client kubernetes.Interface, name string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, labelTimeout)
	defer cancel()
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("read the labels of this node, which name its node configuration: %w", err)
	}
	return node.Labels, nil
}

// current is the configuration in force. The error says why there is none yet.
func (s *configSource) current(ctx context.Context) (nodeconfig.Config, error) {
	if s.dir == "" {
		return nodeconfig.Config{}, nil
	}
	now, warnings, err := s.read(ctx)
	if err != nil {
		s.refused(ctx, err)
	} else {
		s.accepted(ctx, now, append(warnings, now.config.Warnings...))
	}
	if s.inForce == nil {
		return nodeconfig.Config{}, err
	}
	return s.inForce.config, nil
}

// read reads the configuration that the labels of the node name.
func (s *configSource) read(ctx context.Context) (_ parsed, warnings []string, _ error) {
	labels, err := s.currentLabels(ctx)
	if err != nil {
		return parsed{}, nil, err
	}
	found, err := s.open(labels[configLabel], labels[devicePluginLabel], defaultConfig)
	switch {
	case err != nil:
		return parsed{}, nil, err
	case labels[configLabel] != "" && found.name != labels[configLabel]:
		return parsed{}, nil, fmt.Errorf("node configuration %s, which the label %s of this node names, is not there", labels[configLabel], configLabel)
	case labels[configLabel] == "" && labels[devicePluginLabel] != "" && found.name != labels[devicePluginLabel]:
		// The label may be there for the device plugin alone, which has configurations of its own.
		warnings = append(warnings, fmt.Sprintf("the label %s of this node names %s, of which there is no node configuration: it is ignored",
			devicePluginLabel, labels[devicePluginLabel]))
	}
	if found != s.parsed.configText {
		s.parsed = parse(found)
	}
	return s.parsed, warnings, s.parsed.err
}

// currentLabels are those of the node. Once they have been read, old ones do when there are no new ones.
func (s *configSource) currentLabels(ctx context.Context) (map[string]string, error) {
	if s.labelled != nil && time.Now().Before(s.expires) {
		return s.labelled, nil
	}
	labels, err := s.labels(ctx)
	if err != nil && s.labelled == nil {
		return nil, err
	}
	s.expires = time.Now().Add(labelPeriod)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Labels of the node not read, will be tried again", "err", err)
		return s.labelled, nil
	}
	s.labelled = map[string]string{configLabel: labels[configLabel], devicePluginLabel: labels[devicePluginLabel]}
	return s.labelled, nil
}

// open is the text of the first of these configurations that there is.
func (s *configSource) open(names ...string) (configText, error) {
	for _, name := range names {
		if name == "" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(s.dir, name))
		if err == nil {
			return configText{name, string(text)}, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return configText{}, fmt.Errorf("node configuration %s: %w", name, err)
		}
	}
	return configText{}, nil
}

func parse(t configText) parsed {
	if t == (configText{}) {
		return parsed{}
	}
	config, err := nodeconfig.Parse([]byte(t.text))
	if err != nil {
		err = fmt.Errorf("node configuration %s: %w", t.name, err)
	}
	return parsed{t, config, err}
}

// accepted puts a configuration in force.
func (s *configSource) accepted(ctx context.Context, now parsed, warnings []string) {
	if s.inForce == nil || s.inForce.configText != now.configText {
		klog.FromContext(ctx).Info("Node configuration in force", "name", now.name)
	}
	s.inForce = &now
	s.tell(ctx, Events.NodeConfigRefused, "")
	s.tell(ctx, Events.NodeConfigWarning, strings.Join(warnings, "; "))
}

func (s *configSource) refused(ctx context.Context, err error) {
	meanwhile := "meanwhile the one before stays in force"
	if s.inForce == nil {
		meanwhile = "meanwhile every GPU stays in the mode that it had, and one that had none is not offered"
	}
	s.tell(ctx, Events.NodeConfigRefused, oneLine(err)+"; "+meanwhile)
}

// tell says something in an event and in the log, unless it is what was said last of this kind.
func (s *configSource) tell(ctx context.Context, e Event, text string) {
	if s.said[e.Reason] == text {
		return
	}
	s.said[e.Reason] = text
	if text != "" {
		klog.FromContext(ctx).Info("Node configuration", "reason", e.Reason, "message", text)
		s.event(e, "%s", note(text))
	}
}

// explain logs which parts of a configuration do nothing on a node with these GPUs. It is no event: nodes of several kinds may
// share a configuration.
func (s *configSource) explain(ctx context.Context, config nodeconfig.Config, devices []gpu.Device) {
	const kind = "Unmatched"
	text := strings.Join(config.Unmatched(devices), "; ")
	if text != "" && text != s.said[kind] {
		klog.FromContext(ctx).Info("Parts of the node configuration do nothing on this node", "parts", text)
	}
	s.said[kind] = text
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
