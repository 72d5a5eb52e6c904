// SPDX-License-Identifier: Apache-2.0

// Package selectors reads the CEL expressions of claims and classes: it cuts them into clauses, and knows which names
// and values devices have, so that it can say what was likely meant.
package selectors

import (
	"cmp"
	"fmt"
	"strings"
	"sync"

	"github.com/blang/semver/v4"
	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/gpudra/gpu-dra-driver/internal/allocator"
)

// Compiled are the expressions of classes.
var Compiled = NewCache()

// NewCache returns a cache of expressions.
func NewCache() *cel.Cache { return allocator.NewCache(1000) }

// parser returns the environment of the allocator's expressions, with the calls of macros kept for printing.
var parser = sync.OnceValues(func() (*celgo.Env, error) {
	r := Compiled.GetOrCompile("true")
	if r.Error != nil {
		return nil, r.Error
	}
	return r.Environment.Extend(celgo.EnableMacroCallTracking())
})

// Clause is one operand of an expression's &&.
type Clause struct {
	Text  string // as CEL prints it; it can be joined with && as it is
	Limit *Limit // nil if the clause does not compare a number
	Paths []Path // the attributes and capacities in it
	// named are the same, with those that the clause only reads if a device has them.
	Named []Path
	equal *comparison // nil if the clause does not compare a text
}

// Cut cuts an expression at the && of its outermost level.
func Cut(expression string) ([]Clause, error) {
	env, err := parser()
	if err != nil {
		return nil, err
	}
	parsed, issues := env.Parse(expression)
	if issues.Err() != nil {
		return nil, issues.Err()
	}
	info := parsed.NativeRep().SourceInfo()
	var all []Clause
	for _, e := range conjuncts(parsed.NativeRep().Expr()) {
		text, err := celgo.ExprToString(e, info)
		if err != nil {
			return nil, err
		}
		c := Clause{Text: text, Paths: pathsIn(e, pathOf), Named: pathsIn(e, namedPath), equal: comparisonOf(e)}
		if call(e, operators.LogicalOr) != nil || call(e, operators.Conditional) != nil {
			c.Text = "(" + text + ")"
		}
		if c.Limit = limitOf(e); c.Limit != nil {
			if c.Limit.subject, err = celgo.ExprToString(c.Limit.expr, info); err != nil {
				return nil, err
			}
		}
		all = append(all, c)
	}
	return all, nil
}

func conjuncts(e ast.Expr) []ast.Expr {
	and := call(e, operators.LogicalAnd)
	if and == nil {
		return []ast.Expr{e}
	}
	var all []ast.Expr
	for _, operand := range and.Args() {
		all = append(all, conjuncts(operand)...)
	}
	return all
}

// call returns the call of that function, or nil if the expression is something else.
func call(e ast.Expr, function string) ast.CallExpr {
	if e.Kind() == ast.CallKind && e.AsCall().FunctionName() == function {
		return e.AsCall()
	}
	return nil
}

// Path is an attribute or a capacity of a device in an expression.
type Path struct {
	field  string // attributes or capacity
	domain string
	id     string
}

func (p Path) String() string { return fmt.Sprintf("device.%s[%q].%s", p.field, p.domain, p.id) }

// pathOf returns the attribute or capacity that an expression is, if it is one.
func pathOf(e ast.Expr) (Path, bool) {
	of, id, ok := member(e)
	if !ok {
		return Path{}, false
	}
	return pathIn(of, id)
}

// namedPath is pathOf, also for has(path), path.?name and path[?'name'].
func namedPath(e ast.Expr) (Path, bool) {
	if e.Kind() == ast.SelectKind {
		return pathIn(e.AsSelect().Operand(), e.AsSelect().FieldName())
	}
	for _, function := range []string{operators.OptSelect, operators.OptIndex} {
		if c := call(e, function); c != nil && c.Args()[1].Kind() == ast.LiteralKind {
			id, _ := c.Args()[1].AsLiteral().Value().(string)
			return pathIn(c.Args()[0], id)
		}
	}
	return pathOf(e)
}

// pathIn returns the attribute or capacity of that name of an expression such as device.attributes['domain'].
func pathIn(of ast.Expr, id string) (Path, bool) {
	of, domain, ok := member(of)
	if !ok {
		return Path{}, false
	}
	if of.Kind() != ast.SelectKind || of.AsSelect().Operand().Kind() != ast.IdentKind ||
		of.AsSelect().Operand().AsIdent() != "device" {
		return Path{}, false
	}
	field := of.AsSelect().FieldName()
	return Path{field, domain, id}, field == "attributes" || field == "capacity"
}

// member splits x.name and x['name'].
func member(e ast.Expr) (of ast.Expr, name string, ok bool) {
	if e.Kind() == ast.SelectKind && !e.AsSelect().IsTestOnly() {
		return e.AsSelect().Operand(), e.AsSelect().FieldName(), true
	}
	if c := call(e, operators.Index); c != nil && c.Args()[1].Kind() == ast.LiteralKind {
		name, ok = c.Args()[1].AsLiteral().Value().(string)
		return c.Args()[0], name, ok
	}
	return nil, "", false
}

// pathsIn returns the attributes and capacities that the function finds in an expression, each once.
func pathsIn(e ast.Expr, find func(ast.Expr) (Path, bool)) []Path {
	var all []Path
	seen := map[Path]bool{}
	ast.PreOrderVisit(e, ast.NewExprVisitor(func(part ast.Expr) {
		if p, ok := find(part); ok && !seen[p] {
			seen[p] = true
			all = append(all, p)
		}
	}))
	return all
}

// NamesIn returns the names of all attributes and capacities that the expression may read. It returns false if it may
// read any.
func NamesIn(expression string) (map[string]bool, bool) {
	env, err := parser()
	if err != nil {
		return nil, false
	}
	parsed, issues := env.Parse(expression)
	if issues.Err() != nil {
		return nil, false
	}
	names, known := map[string]bool{}, true
	ast.PreOrderVisit(parsed.NativeRep().Expr(), ast.NewExprVisitor(func(part ast.Expr) {
		switch part.Kind() {
		case ast.ComprehensionKind:
			known = false
		case ast.SelectKind:
			names[part.AsSelect().FieldName()] = true
		case ast.LiteralKind:
			if s, ok := part.AsLiteral().Value().(string); ok {
				names[s] = true
			}
		case ast.CallKind:
			if c := call(part, operators.Index); c != nil && c.Args()[1].Kind() != ast.LiteralKind {
				known = false
			}
		}
	}))
	return names, known
}

// comparison is a clause that compares a text with constants, of which one is enough.
type comparison struct {
	path   Path
	values []string
}

// comparisonOf returns the comparison that a clause is, or nil.
func comparisonOf(e ast.Expr) *comparison {
	if c := call(e, operators.Equals); c != nil {
		subject, value := c.Args()[0], c.Args()[1]
		if subject.Kind() == ast.LiteralKind {
			subject, value = value, subject
		}
		return newComparison(subject, value)
	}
	if c := call(e, operators.In); c != nil && c.Args()[1].Kind() == ast.ListKind {
		return newComparison(c.Args()[0], c.Args()[1].AsList().Elements()...)
	}
	return nil
}

func newComparison(subject ast.Expr, values ...ast.Expr) *comparison {
	if c := call(subject, "orValue"); c != nil && c.IsMemberFunction() {
		subject = c.Target()
	}
	p, ok := namedPath(subject)
	if !ok {
		return nil
	}
	equal := &comparison{path: p}
	for _, v := range values {
		if v.Kind() != ast.LiteralKind {
			return nil
		}
		text, ok := v.AsLiteral().Value().(string)
		if !ok {
			return nil
		}
		equal.values = append(equal.values, text)
	}
	return equal
}

// Limit is a clause that compares an attribute or a capacity with a constant.
type Limit struct {
	path    Path
	expr    ast.Expr
	subject string // the path as CEL prints it
	AtLeast bool   // the subject is to be at least, or above, the value; otherwise at most, or below
	strict  bool   // equal is not enough
	value   Number
}

// Number is a quantity, a version or an integer.
type Number struct {
	quantity *resource.Quantity
	version  *semver.Version
	integer  int64
}

func (n Number) String() string {
	switch {
	case n.quantity != nil:
		return n.quantity.String()
	case n.version != nil:
		return n.version.String()
	}
	return fmt.Sprint(n.integer)
}

// alike reports whether both are of one type.
func (n Number) alike(with Number) bool {
	return (n.quantity == nil) == (with.quantity == nil) && (n.version == nil) == (with.version == nil)
}

// Compare compares numbers of one type, as cmp.Compare does.
func (n Number) Compare(with Number) int {
	switch {
	case n.quantity != nil:
		return n.quantity.Cmp(*with.quantity)
	case n.version != nil:
		return n.version.Compare(*with.version)
	}
	return cmp.Compare(n.integer, with.integer)
}

// limitOf returns the comparison that a clause is, or nil.
func limitOf(e ast.Expr) *Limit {
	if e.Kind() != ast.CallKind {
		return nil
	}
	c := e.AsCall()
	switch c.FunctionName() {
	case "isGreaterThan", "isLessThan": // path.isGreaterThan(quantity('1'))
		if !c.IsMemberFunction() || len(c.Args()) != 1 {
			return nil
		}
		return newLimit(c.Target(), c.Args()[0], c.FunctionName() == "isGreaterThan", true)
	case operators.GreaterEquals, operators.Greater, operators.LessEquals, operators.Less:
		atLeast := c.FunctionName() == operators.GreaterEquals || c.FunctionName() == operators.Greater
		strict := c.FunctionName() == operators.Greater || c.FunctionName() == operators.Less
		left, right := c.Args()[0], c.Args()[1]
		if compare := call(left, "compareTo"); compare != nil { // path.compareTo(quantity('1')) >= 0
			// The expression is parsed only: it may have any number of arguments.
			if zero, ok := integer(right); !ok || zero != 0 || !compare.IsMemberFunction() || len(compare.Args()) != 1 {
				return nil
			}
			return newLimit(compare.Target(), compare.Args()[0], atLeast, strict)
		}
		return newLimit(left, right, atLeast, strict) // path >= 1
	}
	return nil
}

func newLimit(subject, value ast.Expr, atLeast, strict bool) *Limit {
	p, ok := pathOf(subject)
	if !ok {
		return nil
	}
	n, ok := constant(value)
	if !ok {
		return nil
	}
	return &Limit{path: p, expr: subject, AtLeast: atLeast, strict: strict, value: n}
}

func integer(e ast.Expr) (int64, bool) {
	if e.Kind() != ast.LiteralKind {
		return 0, false
	}
	i, ok := e.AsLiteral().Value().(int64)
	return i, ok
}

// constant returns the value of quantity('1'), semver('1.0.0') or 1.
func constant(e ast.Expr) (Number, bool) {
	if i, ok := integer(e); ok {
		return Number{integer: i}, true
	}
	if e.Kind() != ast.CallKind || len(e.AsCall().Args()) != 1 || e.AsCall().Args()[0].Kind() != ast.LiteralKind {
		return Number{}, false
	}
	text, ok := e.AsCall().Args()[0].AsLiteral().Value().(string)
	if !ok {
		return Number{}, false
	}
	switch e.AsCall().FunctionName() {
	case "quantity":
		q, err := resource.ParseQuantity(text)
		return Number{quantity: &q}, err == nil
	case "semver":
		v, err := semver.Parse(text)
		return Number{version: &v}, err == nil
	}
	return Number{}, false
}

// Of returns the value of the device, if it has one of the type of the limit.
func (l *Limit) Of(driver string, d *resourceapi.Device) (Number, bool) {
	names := []resourceapi.QualifiedName{resourceapi.QualifiedName(l.path.domain + "/" + l.path.id)}
	if l.path.domain == driver {
		names = append(names, resourceapi.QualifiedName(l.path.id))
	}
	for _, name := range names {
		if l.path.field == "capacity" {
			if c, ok := d.Capacity[name]; ok && l.value.quantity != nil {
				return Number{quantity: &c.Value}, true
			}
			continue
		}
		a := d.Attributes[name]
		switch {
		case a.IntValue != nil && l.value.quantity == nil && l.value.version == nil:
			return Number{integer: *a.IntValue}, true
		case a.VersionValue != nil && l.value.version != nil:
			v, err := semver.Parse(*a.VersionValue)
			return Number{version: &v}, err == nil
		}
	}
	return Number{}, false
}

// Meets reports whether a value is within the limit.
func (l *Limit) Meets(n Number) bool {
	c := n.Compare(l.value)
	switch {
	case c == 0:
		return !l.strict
	case l.AtLeast:
		return c > 0
	}
	return c < 0
}

// With returns the clause with another value, which is itself within the limit.
func (l *Limit) With(n Number) string {
	operator := "<="
	if l.AtLeast {
		operator = ">="
	}
	switch {
	case n.quantity != nil:
		return fmt.Sprintf("%s.compareTo(quantity(%q)) %s 0", l.subject, n.String(), operator)
	case n.version != nil:
		return fmt.Sprintf("%s.compareTo(semver(%q)) %s 0", l.subject, n.String(), operator)
	}
	return fmt.Sprintf("%s %s %s", l.subject, operator, n)
}

// Guard returns the clause behind a test that the device has all that the clause reads.
func (c Clause) Guard() string {
	var tests []string
	for _, p := range c.Paths {
		tests = append(tests, fmt.Sprintf("has(%s)", p))
	}
	return strings.Join(append(tests, c.Text), " && ")
}
