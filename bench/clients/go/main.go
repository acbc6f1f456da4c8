// One writer with iceberg-go, as its documentation has it; run by run.py.
//
//	clients OPERATION URI TOKEN TABLE REGION ROUNDS
//
// It prints "ready" when it has loaded the table, waits for a line, writes, and prints "landed" or "failed: WHY".
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog/rest"
	"github.com/apache/iceberg-go/table"
)

func rows(schema *arrow.Schema, region int, ids []int, price int64) arrow.Table {
	builder := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	for _, id := range ids {
		builder.Field(0).(*array.Int64Builder).Append(int64(region*1000 + id))
		builder.Field(1).(*array.StringBuilder).Append(fmt.Sprintf("r%d", region))
		builder.Field(2).(*array.Int64Builder).Append(price)
	}
	return array.NewTableFromRecords(schema, []arrow.RecordBatch{builder.NewRecordBatch()})
}

func write(ctx context.Context, loaded *table.Table, operation string, region, number int) error {
	schema, err := table.SchemaToArrowSchema(loaded.Schema(), nil, true, false)
	if err != nil {
		return err
	}
	mine := iceberg.EqualTo(iceberg.Reference("region"), fmt.Sprintf("r%d", region))
	switch operation {
	case "append":
		_, err = loaded.AppendTable(ctx, rows(schema, region, []int{100 + number}, int64(number)), 1024, nil)
	case "overwrite":
		_, err = loaded.OverwriteTable(ctx, rows(schema, region, []int{0, 1, 2, 3, 4}, int64(number+1)), 1024, nil,
			table.WithOverwriteFilter(mine))
	case "delete":
		id := iceberg.EqualTo(iceberg.Reference("id"), int64(region*1000+10+number))
		_, err = loaded.Delete(ctx, iceberg.NewAnd(mine, id), nil)
	default:
		err = fmt.Errorf("no such operation: %s", operation)
	}
	return err
}

func main() {
	ctx := context.Background()
	operation, uri, token, name := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	region, _ := strconv.Atoi(os.Args[5])
	rounds, _ := strconv.Atoi(os.Args[6])
	options := []rest.Option{}
	if token != "" {
		options = append(options, rest.WithOAuthToken(token))
	}
	catalog, err := rest.NewCatalog(ctx, "lake", uri, options...)
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	input := bufio.NewReader(os.Stdin)
	for number := range rounds {
		loaded, err := catalog.LoadTable(ctx, strings.Split(name, "."))
		fmt.Println("ready")
		if _, wrong := input.ReadString('\n'); wrong != nil {
			return
		}
		if err == nil {
			err = write(ctx, loaded, operation, region, number)
		}
		if err != nil {
			fmt.Println("failed:", strings.Join(strings.Fields(err.Error()), " "))
		} else {
			fmt.Println("landed")
		}
	}
}
