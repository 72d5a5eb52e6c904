// SPDX-License-Identifier: Apache-2.0

package selectors

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
	// ShownTexts is how many values or names an explanation lists.
	ShownTexts = 5
	// ExplainedClauses is how many clauses of a selector are explained.
	ExplainedClauses = 32
	// nearTexts is how many values are offered in place of one that no device has.
	nearTexts = 3
)

// Vocabulary is what a selector can name: the attributes and capacities of devices, and the texts that they have.
type Vocabulary struct {
	gpus  bool // devices say what kind of GPU they are
	names map[Path]bool
	texts map[Path][]string // nil: too many
	least map[Path]Number
	most  map[Path]Number
}

// NewVocabulary returns an empty vocabulary.
func NewVocabulary() *Vocabulary {
	return &Vocabulary{names: map[Path]bool{}, texts: map[Path][]string{}, least: map[Path]Number{},
		most: map[Path]Number{}}
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
			v.addNumber(p, Number{integer: *value.IntValue})
		case value.VersionValue != nil:
			if version, err := semver.Parse(*value.VersionValue); err == nil {
				v.addNumber(p, Number{version: &version})
			}
		}
	}
	for name, capacity := range d.Capacity {
		p := pathTo(capacityField, driver, name)
		v.names[p] = true
		v.addNumber(p, Number{quantity: &capacity.Value})
	}
	if d.Attributes["type"].StringValue == nil || v.gpus {
		return
	}
	v.gpus = true
	for _, a := range inventory.AllAttributes {
		v.names[pathTo(attributesField, driver, a.Name)] = true
	}
}

func (v *Vocabulary) addText(p Path, text string) {
	known, seen := v.texts[p]
	switch {
	case seen && known == nil || slices.Contains(known, text):
	case len(known) == maxTexts:
		v.texts[p] = nil
	default:
		v.texts[p] = append(known, text)
	}
}

func (v *Vocabulary) addNumber(p Path, n Number) {
	if known, ok := v.least[p]; !ok || !known.alike(n) || n.Compare(known) < 0 {
		v.least[p] = n
	}
	if known, ok := v.most[p]; !ok || !known.alike(n) || n.Compare(known) > 0 {
		v.most[p] = n
	}
}

// pathTo returns the path of an attribute or a capacity of the driver.
func pathTo(field, driver string, name resourceapi.QualifiedName) Path {
	domain, id, ok := strings.Cut(string(name), "/")
	if !ok {
		return Path{field, driver, string(name)}
	}
	return Path{field, domain, id}
}

// AddLikely adds the attributes that names were likely meant to be: an answer needs their values.
func AddLikely(names map[string]bool) {
	known := map[string]bool{"type": true} // it tells GPUs from other devices
	var all []string
	for _, a := range inventory.AllAttributes {
		known[Identifier(a.Name)] = true
		all = append(all, Identifier(a.Name))
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
	clauses, err := Cut(expression)
	if err != nil {
		return nil
	}
	var all []string
	for _, c := range clauses[:min(len(clauses), ExplainedClauses)] {
		if meets(c.Text) {
			continue
		}
		m := v.Mistake(c)
		if of == OnlyMistakes && (m == nil || !m.Sure) {
			continue
		}
		if m == nil {
			m = &Mistake{Text: "no device meets " + c.Text}
		}
		if !slices.Contains(all, m.Text) {
			all = append(all, m.Text)
		}
	}
	return all
}

// Attribute explains why devices cannot be compared by an attribute. It returns "" if they can.
func (v *Vocabulary) Attribute(name resourceapi.FullyQualifiedName) string {
	domain, id, _ := strings.Cut(string(name), "/")
	m := v.unknown(Path{attributesField, domain, id})
	if m == nil {
		return ""
	}
	text := fmt.Sprintf("no device has the attribute %s", name)
	if m.Right != (Path{}) && m.Right.field == attributesField {
		text += fmt.Sprintf("; did you mean %s/%s?", m.Right.domain, m.Right.id)
	}
	return text
}

// Mistake is what is wrong with a clause that no device meets.
type Mistake struct {
	Text         string
	Sure, Value  bool     // devices that are not there do not meet it either; no device has the value
	Wrong, Right Path     // if another name was likely meant
	Fixes        []string // clauses that were likely meant, the likeliest first
	Class        string   // that was likely meant in place of the clause
}

// Mistake returns the mistake in a clause that no device meets, or nil if it has none.
func (v *Vocabulary) Mistake(c Clause) *Mistake {
	for _, p := range c.Named {
		if m := v.unknown(p); m != nil {
			if m.Right != (Path{}) {
				m.Fixes = []string{c.Renamed(p, m.Right)}
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
	if c.Limit != nil {
		return v.beyondAll(c)
	}
	for _, p := range c.Named {
		if texts := v.texts[p]; len(texts) > 0 && !identifying[p.id] {
			return &Mistake{Text: fmt.Sprintf("no device meets %s; %s", c.Text, listed(p.id, texts))}
		}
	}
	return nil
}

// identifying are attributes of which each device has a value of its own: lists of them help nobody.
var identifying = map[string]bool{"uuid": true, "parentUUID": true, "pciBusID": true, "nvlinkDomain": true,
	"fabricDomain": true, "pcieRoot": true}

// unknown returns the mistake if no device has the attribute or the capacity.
func (v *Vocabulary) unknown(p Path) *Mistake {
	if v.names[p] || len(v.names) == 0 {
		return nil
	}
	kind := map[string]string{attributesField: "attribute", capacityField: "capacity"}
	m := &Mistake{Text: fmt.Sprintf("no device has the %s %s", kind[p.field], p.id), Sure: true, Wrong: p}
	other := Path{map[string]string{attributesField: capacityField, capacityField: attributesField}[p.field], p.domain,
		p.id}
	ids, domains := v.near(p)
	switch {
	case v.names[other]:
		m.Right = other
		m.Text = fmt.Sprintf("%s is no %s; did you mean the %s %s?", p.id, kind[p.field], kind[other.field], other)
		return m
	case len(domains) > 0: // the name exists in another domain
		m.Right = Path{p.field, domains[0], p.id}
		if near := nearest.Name(p.domain, domains); near != "" {
			m.Right.domain = near
		}
		m.Text += fmt.Sprintf(" of the domain %s; did you mean %s?", p.domain, m.Right)
		return m
	}
	if near := nearest.Name(p.id, slices.Sorted(maps.Keys(ids))); near != "" {
		m.Right = Path{p.field, ids[near], near}
		m.Text += fmt.Sprintf("; did you mean %s?", m.Right)
		return m
	}
	if names := v.listedNames(p.field, ids); len(names) > 0 {
		m.Text += "; there are " + strings.Join(names, ", ")
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
func (v *Vocabulary) near(p Path) (ids map[string]string, domains []string) {
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
func (v *Vocabulary) wrongType(c Clause) *Mistake {
	parts := comparing.FindStringSubmatch(c.Text)
	if parts == nil || len(c.Paths) != 1 {
		return nil
	}
	p, subject, with := c.Paths[0], parts[1], comparedWith.FindStringSubmatch(parts[2]+parts[5]+parts[7])
	operator := parts[3] + parts[6] + map[string]string{"Greater": ">", "Less": "<"}[parts[4]]
	texts, isText := v.texts[p]
	some, isNumber := v.most[p]
	switch {
	case operator == "" && isText:
		m := &Mistake{Sure: true, Text: p.id + " is a text: compare it"}
		for _, text := range slices.Sorted(slices.Values(texts))[:min(len(texts), nearTexts)] {
			m.Fixes = append(m.Fixes, fmt.Sprintf(forms["text"], subject, "==", text))
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
	return &Mistake{Sure: true, Text: what + kind + ": write " + right, Fixes: []string{right}}
}

// unknownValue returns the mistake if no device has the text that the clause wants.
func (v *Vocabulary) unknownValue(c Clause) *Mistake {
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
		return &Mistake{Text: p.id + " is of partitions: use the class " + class, Sure: true, Class: class}
	}
	m := &Mistake{Text: fmt.Sprintf("no device has the %s %s", p.id, strconv.Quote(value)),
		Value: true}
	if len(c.equal.values) > 1 {
		m.Text = fmt.Sprintf("no device has a %s of %s", p.id, quoted(c.equal.values[:min(len(c.equal.values),
			ShownTexts)], ", "))
	}
	near := nearest.Names(value, texts, nearTexts)
	for _, right := range near {
		m.Sure = m.Sure || strings.Contains(strings.ToLower(right), strings.ToLower(value))
		m.Fixes = append(m.Fixes, strings.Replace(c.Text, strconv.Quote(value), strconv.Quote(right), 1))
	}
	switch {
	case len(near) > 0:
		m.Text += "; did you mean " + quoted(near, " or ") + "?"
	case !identifying[p.id]:
		m.Text += "; " + listed(p.id, texts)
	}
	return m
}

// beyondAll returns the mistake if no device is within the limit of the clause.
func (v *Vocabulary) beyondAll(c Clause) *Mistake {
	best, ok := v.least[c.Limit.path]
	word := "least"
	if c.Limit.AtLeast {
		best, word = v.most[c.Limit.path], "most"
	}
	if !ok || !best.alike(c.Limit.value) || c.Limit.Meets(best) {
		return nil
	}
	return &Mistake{Text: fmt.Sprintf("no device meets %s; the %s is %s", c.Text, word, best)}
}

// listed says which texts there are.
func listed(name string, texts []string) string {
	all := slices.Sorted(slices.Values(texts))
	if more := len(all) - ShownTexts; more > 0 {
		return fmt.Sprintf("the values of %s are %s and %d more", name, quoted(all[:ShownTexts], ", "), more)
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

// Renamed returns the clause with another attribute or capacity.
func (c Clause) Renamed(wrong, right Path) string {
	text := strings.ReplaceAll(c.Text, wrong.String(), right.String())
	optional := func(p Path) string { return fmt.Sprintf("device.%s[%q].?%s", p.field, p.domain, p.id) }
	return strings.ReplaceAll(text, optional(wrong), optional(right))
}

// Identifier returns the name without its domain.
func Identifier(name resourceapi.QualifiedName) string {
	_, id, ok := strings.Cut(string(name), "/")
	if !ok {
		return string(name)
	}
	return id
}
