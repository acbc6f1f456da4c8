// iceberg-go as a driver of a session; run by verify/exchanges/run.py.
//
//	exchanges URI
//
// It reads one act a line from standard input, as JSON, and answers each with "done" or "failed: WHY".
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/catalog/rest"
	"github.com/apache/iceberg-go/table"
)

type act struct {
	Do         string
	As         string
	Token      string
	Credential string
	Name       string
	To         string
	Ids        []int64
	Region     string
	Properties map[string]string
	Removals   []string
	Hold       bool
}

var (
	ctx      = context.Background()
	catalogs = map[string]*rest.Catalog{}
	held     = map[string]*table.Table{}
)

func rows(loaded *table.Table, ids []int64, region string) (arrow.Table, error) {
	schema, err := table.SchemaToArrowSchema(loaded.Schema(), nil, true, false)
	if err != nil {
		return nil, err
	}
	builder := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	for _, id := range ids {
		builder.Field(0).(*array.Int64Builder).Append(id)
		builder.Field(1).(*array.StringBuilder).Append(region)
	}
	return array.NewTableFromRecords(schema, []arrow.RecordBatch{builder.NewRecordBatch()}), nil
}

// The table that was held before, or as it is now.
func load(cat *rest.Catalog, wanted act) (*table.Table, error) {
	if loaded, ok := held[wanted.As+wanted.Name]; ok && !wanted.Hold {
		delete(held, wanted.As+wanted.Name)
		return loaded, nil
	}
	return cat.LoadTable(ctx, strings.Split(wanted.Name, "."))
}

func change(cat *rest.Catalog, wanted act) error {
	loaded, err := load(cat, wanted)
	if err != nil {
		return err
	}
	region := iceberg.EqualTo(iceberg.Reference("region"), wanted.Region)
	properties := iceberg.Properties(wanted.Properties)
	switch wanted.Do {
	case "load":
		if wanted.Hold {
			held[wanted.As+wanted.Name] = loaded
		}
	case "append":
		made, wrong := rows(loaded, wanted.Ids, wanted.Region)
		if wrong != nil {
			return wrong
		}
		_, err = loaded.AppendTable(ctx, made, 1024, properties)
	case "overwrite":
		made, wrong := rows(loaded, wanted.Ids, wanted.Region)
		if wrong != nil {
			return wrong
		}
		_, err = loaded.OverwriteTable(ctx, made, 1024, properties, table.WithOverwriteFilter(region))
	case "delete":
		id := iceberg.EqualTo(iceberg.Reference("id"), wanted.Ids[0])
		_, err = loaded.Delete(ctx, iceberg.NewAnd(region, id), properties)
	case "properties":
		transaction := loaded.NewTransaction()
		if err = transaction.SetProperties(properties); err == nil {
			_, err = transaction.Commit(ctx)
		}
	case "rollback":
		transaction := loaded.NewTransaction()
		if err = transaction.RollbackToSnapshot(*loaded.CurrentSnapshot().ParentSnapshotID); err == nil {
			_, err = transaction.Commit(ctx)
		}
	case "column":
		transaction := loaded.NewTransaction()
		update := transaction.UpdateSchema(true, false).AddColumn([]string{wanted.To}, iceberg.PrimitiveTypes.String, "", false, nil)
		if err = update.Commit(); err == nil {
			_, err = transaction.Commit(ctx)
		}
	case "two tables":
		other, wrong := cat.LoadTable(ctx, strings.Split(wanted.To, "."))
		if wrong != nil {
			return wrong
		}
		both, wrong := catalog.NewMultiTableTransaction(cat)
		if wrong != nil {
			return wrong
		}
		for _, each := range []*table.Table{loaded, other} {
			transaction := each.NewTransaction()
			if err = transaction.SetProperties(properties); err != nil {
				return err
			}
			if err = both.AddTransaction(transaction); err != nil {
				return err
			}
		}
		err = both.Commit(ctx)
	default:
		err = fmt.Errorf("no such act: %s", wanted.Do)
	}
	return err
}

func perform(uri string, wanted act) error {
	if wanted.Do == "connect" {
		option := rest.WithOAuthToken(wanted.Token)
		if wanted.Credential != "" {
			option = rest.WithCredential(wanted.Credential)
		}
		cat, err := rest.NewCatalog(ctx, "tower", uri, option)
		catalogs[wanted.As] = cat
		return err
	}
	cat, name := catalogs[wanted.As], strings.Split(wanted.Name, ".")
	var err error
	switch wanted.Do {
	case "create namespace":
		err = cat.CreateNamespace(ctx, name, wanted.Properties)
	case "namespaces":
		_, err = cat.ListNamespaces(ctx, name)
	case "namespace properties":
		_, err = cat.LoadNamespaceProperties(ctx, name)
	case "update namespace":
		_, err = cat.UpdateNamespaceProperties(ctx, name, wanted.Removals, wanted.Properties)
	case "namespace exists":
		_, err = cat.CheckNamespaceExists(ctx, name)
	case "drop namespace":
		err = cat.DropNamespace(ctx, name)
	case "create":
		schema := iceberg.NewSchema(0,
			iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64},
			iceberg.NestedField{ID: 2, Name: "region", Type: iceberg.PrimitiveTypes.String})
		spec := iceberg.NewPartitionSpec(
			iceberg.PartitionField{SourceIDs: []int{2}, FieldID: 1000, Name: "region", Transform: iceberg.IdentityTransform{}})
		_, err = cat.CreateTable(ctx, name, schema, catalog.WithPartitionSpec(&spec), catalog.WithProperties(wanted.Properties))
	case "tables":
		for _, wrong := range cat.ListTables(ctx, name) {
			err = wrong
		}
	case "exists":
		_, err = cat.CheckTableExists(ctx, name)
	case "rename":
		_, err = cat.RenameTable(ctx, name, strings.Split(wanted.To, "."))
	case "register":
		loaded, wrong := cat.LoadTable(ctx, name)
		if wrong != nil {
			return wrong
		}
		_, err = cat.RegisterTable(ctx, strings.Split(wanted.To, "."), loaded.MetadataLocation())
	case "drop":
		err = cat.DropTable(ctx, name)
	case "purge":
		err = cat.PurgeTable(ctx, name)
	default:
		err = change(cat, wanted)
	}
	return err
}

func main() {
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		var wanted act
		err := json.Unmarshal(input.Bytes(), &wanted)
		if err == nil {
			err = perform(os.Args[1], wanted)
		}
		if err != nil {
			fmt.Println("failed:", strings.Join(strings.Fields(err.Error()), " "))
		} else {
			fmt.Println("done")
		}
	}
}
