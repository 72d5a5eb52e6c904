// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/blang/semver/v4"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpudra/gpu-dra-driver/pkg/inventory"
	"github.com/gpudra/gpu-dra-driver/pkg/nearest"
)

const (
	// maxTexts is how many values of an attribute are compared with one that no device has. An attribute with more is
	// taken for one that identifies devices.
	maxTexts = 64
	// shownTexts is how many values or names an explanation lists.
	shownTexts = 5
	// explainedClauses is how many clauses of a selector are explained.
	explainedClauses = 32
	// nearTexts is how many values are offered in place of one that no device has.
	nearTexts = 3
)

// Vocabulary is what a selector can name: the attributes and capacities of devices, and the texts that they have.
type Vocabulary struct {
	gpus  bool // devices say what kind of GPU they are
	names map[path]bool
	texts map[path][]string // nil: too many
	least map[path]number
	most  map[path]number
}

// NewVocabulary returns an empty vocabulary.
func NewVocabulary() *Vocabulary {
	return &Vocabulary{names: map[path]bool{}, texts: map[path][]string{}, least: map[path]number{},
		most: map[path]number{}}
}

// The fields of a device in selectors.
const (
	attributesField = "attributes"
	capacityField   = "capacity"
)

// Add adds what the driver's device has. A device that says what kind of GPU it is may have any attribute that this
// driver publishes: answers are also about devices of which some attributes were not kept.
func (v *Vocabulary) Add(driver string, d *resourceapi.Device) {
	for name, value := range d.Attributes {
		p := pathTo(attributesField, driver, name)
		v.names[p] = true
		switch {
		case value.StringValue != nil:
			v.addText(p, *value.StringValue)
		case value.IntValue != nil:
			v.addNumber(p, number{integer: *value.IntValue})
		case value.VersionValue != nil:
			if version, err := semver.Parse(*value.VersionValue); err == nil {
				v.addNumber(p, number{version: &version})
			}
		}
	}
	for name, capacity := range d.Capacity {
		p := pathTo(capacityField, driver, name)
		v.names[p] = true
		v.addNumber(p, number{quantity: &capacity.Value})
	}
	if d.Attributes["type"].StringValue == nil || v.gpus {
		return
	}
	v.gpus = true
	for _, a := range inventory.AllAttributes {
		v.names[pathTo(attributesField, driver, a.Name)] = true
	}
}

func (v *Vocabulary) addText(p path, text string) {
	known, seen := v.texts[p]
	switch {
	case seen && known == nil || slices.Contains(known, text):
	case len(known) == maxTexts:
		v.texts[p] = nil
	default:
		v.texts[p] = append(known, text)
	}
}

func (v *Vocabulary) addNumber(p path, n number) {
	if known, ok := v.least[p]; !ok || !known.alike(n) || n.compare(known) < 0 {
		v.least[p] = n
	}
	if known, ok := v.most[p]; !ok || !known.alike(n) || n.compare(known) > 0 {
		v.most[p] = n
	}
}

// pathTo returns the path of an attribute or a capacity of the driver.
func pathTo(field, driver string, name resourceapi.QualifiedName) path {
	domain, id, ok := strings.Cut(string(name), "/")
	if !ok {
		return path{field, driver, string(name)}
	}
	return path{field, domain, id}
}

// addLikely adds the attributes that names were likely meant to be: an answer needs their values.
func addLikely(names map[string]bool) {
	known := map[string]bool{"type": true} // it tells GPUs from other devices
	var all []string
	for _, a := range inventory.AllAttributes {
		known[identifier(a.Name)] = true
		all = append(all, identifier(a.Name))
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if near := nearest.Name(name, all); !known[name] && near != "" {
			names[near] = true
		}
	}
}

// Explained says what Unmet explains.
type Explained int

const (
	// Everything is each clause.
	Everything Explained = iota
	// OnlyMistakes are names that no device has, constants of another type, and parts of a value that devices have.
	// Any other value may be that of devices that are not there.
	OnlyMistakes
)

// Unmet explains the clauses of a selector that no device meets: a name that no device has, a value that none has, or
// else the clause itself. meets reports whether a device meets an expression. An expression that is not valid, or that
// is more than a selector can be, has no explanation.
func (v *Vocabulary) Unmet(expression string, of Explained, meets func(expression string) bool) []string {
	clauses, err := cut(expression)
	if err != nil {
		return nil
	}
	var all []string
	for _, c := range clauses[:min(len(clauses), explainedClauses)] {
		if meets(c.text) {
			continue
		}
		m := v.mistake(c)
		if of == OnlyMistakes && (m == nil || !m.sure) {
			continue
		}
		if m == nil {
			m = &mistake{text: "no device meets " + c.text}
		}
		if !slices.Contains(all, m.text) {
			all = append(all, m.text)
		}
	}
	return all
}

// Attribute explains why devices cannot be compared by an attribute. It returns "" if they can.
func (v *Vocabulary) Attribute(name resourceapi.FullyQualifiedName) string {
	domain, id, _ := strings.Cut(string(name), "/")
	m := v.unknown(path{attributesField, domain, id})
	if m == nil {
		return ""
	}
	text := fmt.Sprintf("no device has the attribute %s", name)
	if m.right != (path{}) && m.right.field == attributesField {
		text += fmt.Sprintf("; did you mean %s/%s?", m.right.domain, m.right.id)
	}
	return text
}

// mistake is what is wrong with a clause that no device meets.
type mistake struct {
	text         string
	sure, value  bool     // devices that are not there do not meet it either; no device has the value
	wrong, right path     // if another name was likely meant
	fixes        []string // clauses that were likely meant, the likeliest first
	class        string   // that was likely meant in place of the clause
}

// mistake returns the mistake in a clause that no device meets, or nil if it has none.
func (v *Vocabulary) mistake(c clause) *mistake {
	for _, p := range c.named {
		if m := v.unknown(p); m != nil {
			if m.right != (path{}) {
				m.fixes = []string{c.renamed(p, m.right)}
			}
			return m
		}
	}
	if m := v.wrongType(c); m != nil {
		return m
	}
	if c.equal != nil {
		return v.unknownValue(c)
	}
	if c.limit != nil {
		return v.beyondAll(c)
	}
	for _, p := range c.named {
		if texts := v.texts[p]; len(texts) > 0 && !identifying[p.id] {
			return &mistake{text: fmt.Sprintf("no device meets %s; %s", c.text, listed(p.id, texts))}
		}
	}
	return nil
}

// identifying are attributes of which each device has a value of its own: lists of them help nobody.
var identifying = map[string]bool{"uuid": true, "parentUUID": true, "pciBusID": true, "nvlinkDomain": true,
	"fabricDomain": true, "pcieRoot": true}

// unknown returns the mistake if no device has the attribute or the capacity.
func (v *Vocabulary) unknown(p path) *mistake {
	if v.names[p] || len(v.names) == 0 {
		return nil
	}
	kind := map[string]string{attributesField: "attribute", capacityField: "capacity"}
	m := &mistake{text: fmt.Sprintf("no device has the %s %s", kind[p.field], p.id), sure: true, wrong: p}
	other := path{map[string]string{attributesField: capacityField, capacityField: attributesField}[p.field], p.domain,
		p.id}
	ids, domains := v.near(p)
	switch {
	case v.names[other]:
		m.right = other
		m.text = fmt.Sprintf("%s is no %s; did you mean the %s %s?", p.id, kind[p.field], kind[other.field], other)
		return m
	case len(domains) > 0: // the name exists in another domain
		m.right = path{p.field, domains[0], p.id}
		if near := nearest.Name(p.domain, domains); near != "" {
			m.right.domain = near
		}
		m.text += fmt.Sprintf(" of the domain %s; did you mean %s?", p.domain, m.right)
		return m
	}
	if near := nearest.Name(p.id, slices.Sorted(maps.Keys(ids))); near != "" {
		m.right = path{p.field, ids[near], near}
		m.text += fmt.Sprintf("; did you mean %s?", m.right)
		return m
	}
	if names := v.listedNames(p.field, ids); len(names) > 0 {
		m.text += "; there are " + strings.Join(names, ", ")
	}
	return m
}

// listedNames returns the names to list, sorted. Of GPUs these are the names that this driver publishes.
func (v *Vocabulary) listedNames(field string, ids map[string]string) []string {
	if !v.gpus || field == capacityField {
		return slices.Sorted(maps.Keys(ids))
	}
	var all []string
	for _, a := range inventory.AllAttributes {
		if ids[string(a.Name)] != "" {
			all = append(all, string(a.Name))
		}
	}
	slices.Sort(all)
	return all
}

// near returns the names that a path may mean, each with its domain: those of its own domain, or of all if that has
// none. It also returns the domains in which its own name exists.
func (v *Vocabulary) near(p path) (ids map[string]string, domains []string) {
	ids = map[string]string{}
	own := map[string]string{}
	for known := range v.names {
		if known.field != p.field {
			continue
		}
		if known.id == p.id {
			domains = append(domains, known.domain)
		}
		if known.domain == p.domain {
			own[known.id] = known.domain
		}
		if ids[known.id] == "" || known.domain < ids[known.id] {
			ids[known.id] = known.domain
		}
	}
	slices.Sort(domains)
	if len(own) > 0 {
		ids = own
	}
	return ids, domains
}

// comparing matches a clause that compares a value with a constant, or is only a value, as CEL prints it.
var (
	comparing = regexp.MustCompile(`^(device\.\w+\["[^"]+"\](?:\.\w+|\["\w+"\]))` +
		`(?:\.compareTo\((.+)\) ([=!<>]=?) 0|\.is(Greater|Less)Than\((.+)\)| ([=!<>]=?) (.+))?$`)
	comparedWith = regexp.MustCompile(`^(?:(semver|quantity)\()?(?:"([^"]*)"|(-?[0-9.]+))\)?$`)
)

// forms are clauses that compare a value of each type.
var forms = map[string]string{"text": "%s %s %q", "number": "%s %s %s",
	"version": "%s.compareTo(semver(%[3]q)) %[2]s 0", "quantity": "%s.compareTo(quantity(%[3]q)) %[2]s 0"}

// wrongType returns the mistake if the clause compares a value with a constant of another type, or a text with nothing.
func (v *Vocabulary) wrongType(c clause) *mistake {
	parts := comparing.FindStringSubmatch(c.text)
	if parts == nil || len(c.paths) != 1 {
		return nil
	}
	p, subject, with := c.paths[0], parts[1], comparedWith.FindStringSubmatch(parts[2]+parts[5]+parts[7])
	operator := parts[3] + parts[6] + map[string]string{"Greater": ">", "Less": "<"}[parts[4]]
	texts, isText := v.texts[p]
	some, isNumber := v.most[p]
	switch {
	case operator == "" && isText:
		m := &mistake{sure: true, text: p.id + " is a text: compare it"}
		for _, text := range slices.Sorted(slices.Values(texts))[:min(len(texts), nearTexts)] {
			m.fixes = append(m.fixes, fmt.Sprintf(forms["text"], subject, "==", text))
		}
		return m
	case with == nil || !isText && !isNumber:
		return nil
	}
	constant, got, kind, err := with[2]+with[3], strings.Replace(with[1], "semver", "version", 1), "text", error(nil)
	if got == "" {
		got = map[bool]string{true: "number", false: "text"}[with[3] != ""]
	}
	what := p.id + " is a "
	switch {
	case isText:
	case some.version != nil:
		if _, wrong := semver.Parse(constant); wrong != nil && got == "version" {
			what, got = constant+" is no ", ""
		}
		var version semver.Version
		if version, err = semver.ParseTolerant(constant); err == nil {
			constant = version.String()
		}
		kind = "version"
	case some.quantity != nil:
		kind = "quantity"
		_, err = resource.ParseQuantity(constant)
	default:
		kind = "number"
		_, err = strconv.ParseInt(constant, 10, 64)
	}
	right := fmt.Sprintf(forms[kind], subject, operator, constant)
	if got == kind || err != nil {
		return nil
	}
	return &mistake{sure: true, text: what + kind + ": write " + right, fixes: []string{right}}
}

// unknownValue returns the mistake if no device has the text that the clause wants.
func (v *Vocabulary) unknownValue(c clause) *mistake {
	p := c.equal.path
	texts := v.texts[p]
	if len(texts) == 0 || len(c.equal.values) == 0 || slices.ContainsFunc(c.equal.values, func(value string) bool {
		return slices.Contains(texts, value)
	}) {
		return nil
	}
	value := c.equal.values[0]
	if nearest.Profile(value) && slices.Equal(texts, []string{""}) {
		class := "mig-" + value + "." + strings.TrimPrefix(p.domain, "gpu.")
		return &mistake{text: p.id + " is of partitions: use the class " + class, sure: true, class: class}
	}
	m := &mistake{text: fmt.Sprintf("no device has the %s %s", p.id, strconv.Quote(value)),
		value: true}
	if len(c.equal.values) > 1 {
		m.text = fmt.Sprintf("no device has a %s of %s", p.id, quoted(c.equal.values[:min(len(c.equal.values),
			shownTexts)], ", "))
	}
	near := nearest.Names(value, texts, nearTexts)
	for _, right := range near {
		m.sure = m.sure || strings.Contains(strings.ToLower(right), strings.ToLower(value))
		m.fixes = append(m.fixes, strings.Replace(c.text, strconv.Quote(value), strconv.Quote(right), 1))
	}
	switch {
	case len(near) > 0:
		m.text += "; did you mean " + quoted(near, " or ") + "?"
	case !identifying[p.id]:
		m.text += "; " + listed(p.id, texts)
	}
	return m
}

// beyondAll returns the mistake if no device is within the limit of the clause.
func (v *Vocabulary) beyondAll(c clause) *mistake {
	best, ok := v.least[c.limit.path]
	word := "least"
	if c.limit.atLeast {
		best, word = v.most[c.limit.path], "most"
	}
	if !ok || !best.alike(c.limit.value) || c.limit.meets(best) {
		return nil
	}
	return &mistake{text: fmt.Sprintf("no device meets %s; the %s is %s", c.text, word, best)}
}

// listed says which texts there are.
func listed(name string, texts []string) string {
	all := slices.Sorted(slices.Values(texts))
	if more := len(all) - shownTexts; more > 0 {
		return fmt.Sprintf("the values of %s are %s and %d more", name, quoted(all[:shownTexts], ", "), more)
	}
	return fmt.Sprintf("the values of %s are %s", name, quoted(all, ", "))
}

func quoted(texts []string, separator string) string {
	var all []string
	for _, t := range texts {
		all = append(all, strconv.Quote(t))
	}
	return strings.Join(all, separator)
}

// renamed returns the clause with another attribute or capacity.
func (c clause) renamed(wrong, right path) string {
	text := strings.ReplaceAll(c.text, wrong.String(), right.String())
	optional := func(p path) string { return fmt.Sprintf("device.%s[%q].?%s", p.field, p.domain, p.id) }
	return strings.ReplaceAll(text, optional(wrong), optional(right))
}
